//! From SQLite's result codes to what they mean. The only place that looks at them.

use std::error::Error as StdError;

use oncebox_core::{Error, Kind};

/// The primary part of an extended result code.
const PRIMARY: i32 = 0xff;
const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const NOTADB: i32 = 26;
const CONSTRAINT_CHECK: i32 = 275;

/// Where an error came up, which decides what some of them mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Begin,
    Statement,
    Commit,
}

/// An error of a statement.
pub(super) fn failed(what: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| Error::new(kind(&error, At::Statement), what).because(error)
}

/// An error while waiting for a connection and its write lock.
pub(super) fn begin_failed(error: sqlx::Error) -> Error {
    Error::new(kind(&error, At::Begin), "cannot begin a transaction").because(error)
}

/// An error of COMMIT itself.
pub(super) fn commit_failed(error: sqlx::Error) -> Error {
    Error::new(kind(&error, At::Commit), "cannot commit").because(error)
}

/// The kind of the first error of this store or its driver in the chain.
pub(super) fn classify(error: &(dyn StdError + 'static)) -> Option<Kind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(ours) = error.downcast_ref::<Error>() {
            return Some(ours.kind());
        }
        if let Some(driver) = error.downcast_ref::<sqlx::Error>() {
            return Some(kind(driver, At::Statement));
        }
        next = error.source();
    }
    None
}

fn kind(error: &sqlx::Error, at: At) -> Kind {
    match error {
        sqlx::Error::Database(database) => {
            let code = database.code().and_then(|code| code.parse().ok()).unwrap_or_default();
            kind_of_code(code, database.message(), at)
        }
        // The worker thread is gone and took the answer to a COMMIT with it.
        sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) if at == At::Commit => Kind::CommitUnknown,
        sqlx::Error::WorkerCrashed
        | sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::Protocol(_)
        // The driver lost count of a transaction that SQLite ended by itself;
        // the pool drops that connection.
        | sqlx::Error::InvalidSavePointStatement
        | sqlx::Error::BeginFailed => Kind::Unavailable,
        sqlx::Error::Configuration(_) => Kind::Config,
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Kind::Corrupt,
        _ => Kind::Rejected,
    }
}

fn kind_of_code(code: i32, message: &str, at: At) -> Kind {
    if code == CONSTRAINT_CHECK && is_our_check(message) {
        return Kind::Invalid;
    }
    match code & PRIMARY {
        BUSY | LOCKED if at == At::Begin => Kind::Busy,
        BUSY | LOCKED => Kind::Contention,
        // The frames may be in the write-ahead log although their sync failed,
        // and would then come back after a crash.
        IOERR if at == At::Commit => Kind::CommitUnknown,
        IOERR | FULL | CANTOPEN => Kind::Unavailable,
        READONLY | CORRUPT | NOTADB => Kind::Config,
        // It went with a transaction that SQLite ended by itself, as on a full disk.
        ERROR if message.starts_with("no such savepoint") => Kind::Unavailable,
        ERROR if message.starts_with("no such ") || message.contains("has no column named") => Kind::Config,
        _ => Kind::Rejected,
    }
}

/// SQLite names the constraint; ours begin with the name of their table.
fn is_our_check(message: &str) -> bool {
    let name = message.rsplit(": ").next().unwrap_or_default();
    name.starts_with("outbox_") || name.starts_with("scheduled_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_kind() {
        let cases = [
            (5, "database is locked", At::Begin, Kind::Busy),
            (261, "database is locked", At::Begin, Kind::Busy),
            (5, "database is locked", At::Statement, Kind::Contention),
            (517, "database is locked", At::Statement, Kind::Contention),
            (6, "database table is locked", At::Statement, Kind::Contention),
            (13, "database or disk is full", At::Statement, Kind::Unavailable),
            (13, "database or disk is full", At::Commit, Kind::Unavailable),
            (778, "disk I/O error", At::Statement, Kind::Unavailable),
            (1034, "disk I/O error", At::Commit, Kind::CommitUnknown),
            (14, "unable to open database file", At::Begin, Kind::Unavailable),
            (8, "attempt to write a readonly database", At::Statement, Kind::Config),
            (11, "database disk image is malformed", At::Statement, Kind::Config),
            (26, "file is not a database", At::Statement, Kind::Config),
            (1, "no such table: oncebox_outbox", At::Statement, Kind::Config),
            (1, "no such column: x", At::Statement, Kind::Config),
            (1, "no such savepoint: oncebox_delivery", At::Statement, Kind::Unavailable),
            (1, "table oncebox_outbox has no column named x", At::Statement, Kind::Config),
            (1, "near \"x\": syntax error", At::Statement, Kind::Rejected),
            (275, "CHECK constraint failed: outbox_id_length", At::Statement, Kind::Invalid),
            (275, "CHECK constraint failed: price", At::Statement, Kind::Rejected),
            (2067, "UNIQUE constraint failed: t.x", At::Statement, Kind::Rejected),
            (787, "FOREIGN KEY constraint failed", At::Commit, Kind::Rejected),
        ];

        for (code, message, at, expected) in cases {
            assert_eq!(kind_of_code(code, message, at), expected, "{code} {message} {at:?}");
        }
    }

    #[derive(Debug)]
    struct Wrapped(sqlx::Error);

    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("the user's own error")
        }
    }

    impl StdError for Wrapped {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_driver_error_is_found_under_other_errors() {
        let ours = Error::new(Kind::Conflict, "x").because(sqlx::Error::PoolTimedOut);

        assert_eq!(classify(&Wrapped(sqlx::Error::PoolTimedOut)), Some(Kind::Unavailable));
        assert_eq!(classify(&ours), Some(Kind::Conflict));
        assert_eq!(classify(&std::fmt::Error), None);
    }
}
