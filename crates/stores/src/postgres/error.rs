//! What a PostgreSQL error means: the only place that knows SQLSTATE codes.

use std::error::Error as StdError;

use oncebox_core::{Error, Kind};
use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

/// The transaction is doomed by an earlier statement.
pub(super) const IN_FAILED_TRANSACTION: &str = "25P02";

/// Wraps a driver error, for `map_err`.
pub(super) fn failed(what: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| Error::new(kind(&error), what).because(error)
}

/// Wraps an error of the COMMIT itself. If the connection or the server went
/// away under it, nobody here knows what became of it.
pub(super) fn commit_failed(error: sqlx::Error) -> Error {
    match kind(&error) {
        Kind::Unavailable => {
            Error::new(Kind::CommitUnknown, "the connection broke during the commit").because(error)
        }
        kind => Error::new(kind, "cannot commit").because(error),
    }
}

/// The same if the next transaction was to be begun along with the commit: a
/// request that was cancelled may have been cancelled after the commit.
pub(super) fn commit_and_begin_failed(error: sqlx::Error) -> Error {
    let code = error.as_database_error().and_then(DatabaseError::code);
    if code.as_deref() == Some("57014") {
        return Error::new(Kind::CommitUnknown, "the commit was cancelled").because(error);
    }
    commit_failed(error)
}

/// Wraps an error of the seal of a claim: that the key is another's, or else what it means otherwise.
pub(super) fn fenced_or(otherwise: impl FnOnce(sqlx::Error) -> Error) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| {
        let refused = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        let is_anothers = refused.is_some_and(|refused| {
            (refused.code(), refused.table(), refused.column()) == ("23502", Some("receipt"), Some("state"))
        });
        if is_anothers {
            return Error::new(
                Kind::Fenced,
                "the key is another request's, or the transaction that had claimed it has ended",
            )
            .because(error);
        }
        otherwise(error)
    }
}

/// Whether a prepared statement was called where it is not prepared.
pub(super) fn lacks_statement(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<sqlx::Error>());
    let refused = cause.and_then(sqlx::Error::as_database_error);
    refused.and_then(DatabaseError::code).as_deref() == Some("26000")
}

/// Finds the driver's error in a chain of causes.
pub(super) fn classify(error: &(dyn StdError + 'static)) -> Option<Kind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return Some(error.kind());
        }
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return Some(kind(error));
        }
        if let Some(error) = error.downcast_ref::<PgDatabaseError>() {
            return Some(database_kind(error));
        }
        next = error.source();
    }
    None
}

fn kind(error: &sqlx::Error) -> Kind {
    match error {
        sqlx::Error::Database(error) => database_kind(error.as_ref()),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Kind::Unavailable,
        sqlx::Error::Configuration(_) => Kind::Config,
        _ => Kind::Rejected,
    }
}

fn database_kind(error: &dyn DatabaseError) -> Kind {
    sqlstate_kind(error.code().as_deref().unwrap_or_default(), error.constraint())
}

fn sqlstate_kind(code: &str, constraint: Option<&str>) -> Kind {
    match code {
        "40001" | "40P01" => Kind::Contention,
        "55P03" => Kind::Busy,
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25006" => Kind::Unavailable,
        "42501" | "42P01" | "42703" | "3D000" | "3F000" => Kind::Config,
        "22021" | "22P05" | "54000" => Kind::Invalid,
        "23514" if constraint.is_some_and(|name| name.starts_with("outbox_")) => Kind::Invalid,
        _ => match code.get(..2) {
            Some("08" | "53") => Kind::Unavailable,
            Some("28") => Kind::Config,
            _ => Kind::Rejected,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sqlstate_has_its_kind() {
        let cases = [
            ("40001", Kind::Contention),
            ("40P01", Kind::Contention),
            ("55P03", Kind::Busy),
            ("08006", Kind::Unavailable),
            ("57P01", Kind::Unavailable),
            ("57P03", Kind::Unavailable),
            ("53100", Kind::Unavailable),
            ("53300", Kind::Unavailable),
            ("25006", Kind::Unavailable),
            ("25P03", Kind::Rejected),
            ("25P02", Kind::Rejected),
            ("57014", Kind::Rejected),
            ("42501", Kind::Config),
            ("42P01", Kind::Config),
            ("42703", Kind::Config),
            ("3D000", Kind::Config),
            ("28P01", Kind::Config),
            ("22021", Kind::Invalid),
            ("22P05", Kind::Invalid),
            ("54000", Kind::Invalid),
            ("23505", Kind::Rejected),
            ("", Kind::Rejected),
        ];

        for (code, kind) in cases {
            assert_eq!(sqlstate_kind(code, None), kind, "{code}");
        }
    }

    #[test]
    fn only_our_own_check_constraints_are_the_callers_fault() {
        assert_eq!(sqlstate_kind("23514", Some("outbox_id_length")), Kind::Invalid);
        assert_eq!(sqlstate_kind("23514", Some("balance_is_positive")), Kind::Rejected);
    }

    #[derive(Debug)]
    struct OfTheUser(sqlx::Error);

    impl std::fmt::Display for OfTheUser {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("cannot debit")
        }
    }

    impl StdError for OfTheUser {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_driver_error_is_found_below_other_errors() {
        let of_core = Error::new(Kind::Busy, "in flight").because(sqlx::Error::PoolClosed);

        assert_eq!(classify(&of_core), Some(Kind::Busy));
        assert_eq!(classify(&OfTheUser(sqlx::Error::PoolTimedOut)), Some(Kind::Unavailable));
        assert_eq!(classify(&std::io::Error::other("disk")), None);
    }

    #[test]
    fn only_a_broken_connection_makes_a_commit_unknown() {
        let broken = sqlx::Error::Io(std::io::Error::other("reset"));

        assert_eq!(commit_failed(broken).kind(), Kind::CommitUnknown);
        assert_eq!(commit_failed(sqlx::Error::RowNotFound).kind(), Kind::Rejected);
    }
}
