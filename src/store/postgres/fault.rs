//! What PostgreSQL's error codes mean for callers (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).

use sqlx::postgres::PgDatabaseError;

use crate::store::sql::fault::Fault;

/// What an error of the server means.
pub(crate) fn fault_of(error: &PgDatabaseError) -> Fault {
    let (code, said) = (error.code(), error.message().to_owned());
    match code {
        // A deadlock, a serialization failure, or a row that another transaction has just made.
        "40001" | "40P01" | "23505" => Fault::Contended(said),
        "28P01" | "28000" => {
            Fault::Unusable(format!("it refuses the login: {said}; check user and password in store.url"))
        }
        "3D000" => Fault::Unusable(format!("{said}; create it with `createdb`")),
        "42501" => Fault::Unusable(format!("{said}; the user of store.url has to own the tables")),
        "42P01" | "3F000" | "42703" => Fault::Unusable(format!("{said}; `redeliver store migrate` makes the tables")),
        "25006" => Fault::Broken(format!("it takes no writes, as a standby does ({said})")),
        // A statement that was prepared before the tables changed, or on a connection that a pooler has exchanged.
        "0A000" | "26000" => Fault::Broken(said),
        "53100" => Fault::Transient(format!("its disk is full ({said})")),
        "57014" | "55P03" => Fault::Transient(format!("a statement took too long or waited for a lock ({said})")),
        _ => match code.get(..2).unwrap_or_default() {
            // Too many connections, out of memory.
            "53" => Fault::Transient(said),
            // Shut down, starting up, connection lost, disk errors, idle for too long.
            "57" | "08" | "58" | "25" => Fault::Broken(said),
            "XX" => Fault::Unusable(format!("it reports damage: {said} (code {code}); see its log")),
            // It does not understand us, whatever the row.
            "42" => Fault::Unusable(format!("{said} (code {code})")),
            // Values that do not fit, constraints, limits of a row.
            _ => Fault::Row(format!("{said} (code {code})")),
        },
    }
}
