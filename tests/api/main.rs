//! The HTTP API and its access rules, against a running server.

#[path = "../support/mod.rs"]
mod support;

mod access;
mod described;
mod desk;
mod fuzz;
mod input;
mod masks;
mod replays;
mod roles;
mod tasks;
