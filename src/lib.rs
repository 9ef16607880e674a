//! Runs tasks that fail and must be tried again later, on RabbitMQ, with a store that decides.

pub mod bench;
pub mod broker;
pub mod config;
pub mod dead_letter;
pub mod demo;
pub mod gate;
pub mod handler;
pub mod policy;
pub mod producer;
pub mod store;
pub mod task;
pub mod telemetry;
pub mod worker;
