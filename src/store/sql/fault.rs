//! Why a database did not do what it was asked to: try again, ask a person, or this row alone is to blame.

use crate::store::StoreError;

/// Why a statement or a transaction failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The store as a whole cannot do it now, and nothing was done: locked, full, out of memory.
    Transient(String),
    /// The store as a whole cannot do it now; had it been a commit, it may have happened: an I/O error, a connection lost.
    Broken(String),
    /// The store as a whole cannot be used until a person acts.
    Unusable(String),
    /// Another transaction was in the way and nothing was done: the same again will do.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "SQLite has one writer"))]
    Contended(String),
    /// Only what this statement was given is to blame; other rows may go through.
    Row(String),
}

impl Fault {
    /// The fault as callers see it.
    pub(crate) fn at(self, place: impl Into<String>) -> StoreError {
        let place = place.into();
        match self {
            Fault::Transient(reason) | Fault::Broken(reason) | Fault::Contended(reason) => {
                StoreError::Unavailable { place, reason }
            }
            Fault::Unusable(reason) | Fault::Row(reason) => StoreError::Unusable { place, reason },
        }
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Fault {
        let sqlx::Error::Database(database) = &error else {
            return match error {
                sqlx::Error::Encode(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                    Fault::Row(error.to_string())
                }
                sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Fault::Transient(error.to_string()),
                _ => Fault::Broken(error.to_string()),
            };
        };
        #[cfg(feature = "postgres")]
        if let Some(said) = database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
            return crate::store::postgres::fault_of(said);
        }
        let extended: i32 = database.code().and_then(|code| code.parse().ok()).unwrap_or(0);
        crate::store::sqlite::fault_of_code(extended, database.message())
    }
}
