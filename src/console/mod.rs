//! The console: pages for the person who looks after dead letters at three in the morning.
//!
//! Rendered here, readable without scripts; a script of our own keeps numbers fresh and hears keys. Pages are pure functions from
//! what they show to markup; handlers ask the store and give it commands, as the command line does, and decide nothing about tasks.
//! What others wrote is always text.

mod assets;
mod chart;
mod http;
mod i18n;
mod link;
mod page;
mod pages;
mod parts;
mod pulse;
mod query;
mod show;
mod text;

pub use http::pages;
