//! What the stores in SQL databases have in common: everything but how a batch is committed.
//!
//! An [`Engine`](engine::Engine) is a database that answers questions and runs transactions. Whatever is an engine is a
//! [`Store`](crate::store::Store): the questions, the rare changes and the way a task lies in its columns are written once, here.
//! Nothing here decides about a task.

pub(crate) mod access;
pub(crate) mod columns;
pub(crate) mod dialect;
pub(crate) mod drive;
pub(crate) mod engine;
pub(crate) mod fault;
pub(crate) mod filter;
pub(crate) mod groups;
pub(crate) mod ledgers;
pub(crate) mod look;
pub(crate) mod needs;
pub(crate) mod notices;
pub(crate) mod prune;
pub(crate) mod question;
pub(crate) mod read;
pub(crate) mod replays;
pub(crate) mod tally;
pub(crate) mod triage;
pub(crate) mod value;
pub(crate) mod versions;
pub(crate) mod written;
