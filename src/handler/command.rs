//! Runs a command.
