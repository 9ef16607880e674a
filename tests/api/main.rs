//! The HTTP API and its access rules (issue 4), against a running server.

mod access;
mod described;
mod desk;
mod input;
mod roles;
mod tasks;
