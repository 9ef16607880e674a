//! The main job, end to end: the real `redeliver` binary, a real RabbitMQ, a real SQLite file, and a third party that fails.
//!
//! Everything here is seen from outside, by what a user would see: commands, rows, queues, and the calls that reach the third
//! party. Sizes and times are scaled so that a test run can afford them; `REDELIVER_TEST_FULL=1` runs them as large as the
//! promises are made. Each test says what it measured on stdout (`--nocapture`).

mod bad_input;
mod clock;
mod cluster;
mod commands;
mod crowd;
mod definitions;
mod disk_full;
mod doctor;
mod fallbacks;
mod forged;
mod gates;
mod killed;
mod lanes;
mod leaderless;
mod lost_queues;
#[cfg(feature = "postgres")]
mod outages;
#[cfg(feature = "postgres")]
mod postgres;
mod refused;
mod reload;
mod replays;
mod restored;
#[path = "../support/rig.rs"]
mod rig;
mod rolling;
#[cfg(feature = "postgres")]
#[path = "../support/postgres.rs"]
mod server;
mod stalls;
mod storm;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/third_party.rs"]
mod third_party;
mod tls;
mod told;
