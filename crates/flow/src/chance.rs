//! The one place that draws random numbers.

use uuid::Uuid;

/// A number from 0.0 to 1.0, for jitter. The random bits of a UUID are as good
/// as any and need no further dependency.
pub(crate) fn draw() -> f64 {
    let bits = Uuid::now_v7().as_u128() & u128::from(u32::MAX);
    bits as f64 / f64::from(u32::MAX)
}

/// A new message id: unique, and sorted by the time it was made.
pub(crate) fn message_id() -> String {
    Uuid::now_v7().to_string()
}

/// A name for this worker that no other process has.
pub(crate) fn holder() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "host".into());
    format!("{host}-{}-{}", std::process::id(), Uuid::now_v7().simple())
}
