//! Names of metrics, and where each is counted. Labels are low-cardinality:
//! never an id, a key, a tenant or an error text.

use metrics::counter;
use oncebox_core::Outcome;

/// Messages the relay had confirmed, by sink.
pub(crate) fn published(sink: &str, count: usize) {
    if count > 0 {
        counter!("oncebox_relay_published_total", "sink" => sink.to_owned()).increment(count as u64);
    }
}

/// Messages the relay parked or buried, by sink.
pub(crate) fn parked(sink: &str, count: usize) {
    if count > 0 {
        counter!("oncebox_relay_parked_total", "sink" => sink.to_owned()).increment(count as u64);
    }
}

/// What came of a delivery, by handler.
pub(crate) fn received(handler: &str, outcome: &Outcome) {
    let name = match outcome {
        Outcome::Done { .. } => "applied",
        Outcome::Duplicate { .. } => "duplicate",
        Outcome::Busy => "busy",
        Outcome::Unavailable { .. } => "unavailable",
        Outcome::Failed { .. } => "error",
        Outcome::Refused { .. } => "refused",
    };
    counter!("oncebox_inbox_attempts_total", "handler" => handler.to_owned(), "outcome" => name).increment(1);
}

/// A message that ran without protection because the user allowed it.
pub(crate) fn unkeyed(handler: &str) {
    counter!("oncebox_inbox_unkeyed_total", "handler" => handler.to_owned()).increment(1);
}

/// Rows the janitor deleted.
pub(crate) fn purged(table: &'static str, count: usize) {
    counter!("oncebox_purged_rows_total", "table" => table).increment(count as u64);
}

/// What came of storing a message for durable handlers.
pub(crate) fn deposited(outcome: &'static str) {
    counter!("oncebox_inbox_deposits_total", "outcome" => outcome).increment(1);
}
