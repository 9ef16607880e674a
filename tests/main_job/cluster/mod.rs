//! A RabbitMQ of three nodes: tasks go on while one is down, stands still or has lost the others, and wait while there is no
//! majority. Seen from outside: the real binary, real nodes, real kills.
//!
//! `REDELIVER_TEST_FULL=1` runs the crowd at its full size; `REDELIVER_TEST_STORE` is the URL of another store for it to use.

mod crowd;
mod failover;
