//! The pages: what each shows and how, as pure functions.

pub(crate) mod audit;
pub(crate) mod dead;
pub(crate) mod gates;
pub(crate) mod overview;
pub(crate) mod policies;
pub(crate) mod problem;
pub(crate) mod replays;
pub(crate) mod stats;
pub(crate) mod task;
pub(crate) mod tasks;
pub(crate) mod workers;
