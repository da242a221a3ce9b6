//! Whose clock decides: the database's, or a test's.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use oncebox_core::Timestamp;
use oncebox_core::timestamp::micros;

/// The clock statements are run with.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The database's own. Workers never compare their clock with a stored time.
    #[default]
    Database,
    /// One that a test moves by hand.
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// A clock that stands at `start` until it is moved.
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        Self::Manual(Arc::new(AtomicI64::new(start.micros())))
    }

    /// The time for a statement; `None` leaves it to the database.
    #[must_use]
    pub fn now(&self) -> Option<Timestamp> {
        match self {
            Self::Database => None,
            Self::Manual(at) => Some(Timestamp::from_micros(at.load(Ordering::SeqCst))),
        }
    }

    /// Moves a manual clock forward; the database's cannot be moved.
    pub fn advance(&self, span: Duration) {
        if let Self::Manual(at) = self {
            at.fetch_add(micros(span), Ordering::SeqCst);
        }
    }
}
