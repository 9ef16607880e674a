//! What every store promises (design §3 and §4), as one suite over all of them.
//!
//! A test is a function of a [`Fixture`](fixture::Fixture); [`conformance!`] makes one test of it per store. A further store
//! joins with a constructor in `fixture` and a line in that macro. What only one of them promises is in
//! `sqlite/` and `postgres/`.

/// Turns `async fn name(f) { … }` into a test for every store.
macro_rules! conformance {
    ($($(#[$doc:meta])* async fn $name:ident($fixture:ident) $body:block)*) => {
        $($(#[$doc])* async fn $name($fixture: $crate::fixture::Fixture) $body)*

        mod memory {
            $(#[tokio::test] async fn $name() { super::$name($crate::fixture::memory()).await })*
        }

        mod sqlite {
            $(#[tokio::test] async fn $name() { super::$name($crate::fixture::sqlite().await).await })*
        }

        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test] async fn $name() {
                if let Some(fixture) = $crate::fixture::postgres().await {
                    super::$name(fixture).await;
                }
            })*
        }
    };
}

#[cfg(feature = "postgres")]
#[path = "../support/postgres.rs"]
mod server;

mod access;
mod agreement;
mod alarms;
mod attempts;
mod cached;
mod claim;
mod copies;
mod copying;
mod fixture;
mod gates;
mod letters;
mod lists;
mod look;
mod notices;
mod pauses;
mod people;
#[cfg(feature = "postgres")]
mod postgres;
mod replays;
mod settle;
mod sqlite;
mod submit;
mod tallies;
mod versions;
mod wakes;
