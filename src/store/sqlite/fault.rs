//! What SQLite's error codes mean for callers.

use crate::store::sql::fault::Fault;

/// Primary result codes (<https://www.sqlite.org/rescode.html>).
mod code {
    pub(super) const PERM: i32 = 3;
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const NOMEM: i32 = 7;
    pub(super) const READONLY: i32 = 8;
    pub(super) const INTERRUPT: i32 = 9;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const PROTOCOL: i32 = 15;
    pub(super) const SCHEMA: i32 = 17;
    pub(super) const AUTH: i32 = 23;
    pub(super) const NOTADB: i32 = 26;
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        match &error {
            rusqlite::Error::SqliteFailure(code, said) => {
                let said = said.clone().unwrap_or_else(|| error.to_string());
                fault_of_code(code.extended_code, &said)
            }
            _ => Fault::Row(error.to_string()),
        }
    }
}

/// What an extended result code means.
pub(crate) fn fault_of_code(extended: i32, said: &str) -> Fault {
    match extended & 0xff {
        code::BUSY | code::LOCKED | code::PROTOCOL => {
            Fault::Transient(format!("another program holds its lock ({said})"))
        }
        code::FULL => Fault::Transient(format!("the disk is full ({said})")),
        code::IOERR => Fault::Broken(format!("reading or writing it failed ({said}, code {extended})")),
        code::NOMEM | code::INTERRUPT | code::SCHEMA => Fault::Transient(said.to_owned()),
        code::READONLY => Fault::Unusable(format!("it is read-only; make the file and its folder writable ({said})")),
        code::CANTOPEN | code::PERM | code::AUTH => {
            Fault::Unusable(format!("it cannot be opened; check that its folder exists and is writable ({said})"))
        }
        code::CORRUPT => Fault::Unusable(format!(
            "its content is damaged; stop the workers and restore it from a copy, or recover it with \
                 `sqlite3 FILE .recover` ({said})"
        )),
        code::NOTADB => Fault::Unusable(format!("it is no SQLite database ({said})")),
        _ => Fault::Row(said.to_owned()),
    }
}
