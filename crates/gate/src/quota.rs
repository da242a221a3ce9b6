//! How many keys a caller may have at a time: whoever makes up keys without
//! end must not fill the database for all others.
//!
//! The store counts, at most once a second for each caller; in between this
//! process adds what it lets in. So a caller may have a few more than allowed,
//! by what other processes let in during that second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oncebox_core::gate::Receipts;
use oncebox_core::{Error, Kind};

type Scope = [u8; 32];

/// How long a count is believed.
const FRESH: Duration = Duration::from_secs(1);
/// How long a store may take to count.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most callers whose counts are remembered.
const MOST: usize = 10_000;

#[derive(Default)]
pub(crate) struct Quota(Mutex<HashMap<Scope, Count>>);

#[derive(Clone, Copy)]
struct Count {
    keys: usize,
    at: Instant,
}

impl Quota {
    fn counts(&self) -> MutexGuard<'_, HashMap<Scope, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, scope: &Scope) -> Option<usize> {
        self.counts().get(scope).filter(|count| count.at.elapsed() < FRESH).map(|count| count.keys)
    }

    fn learn(&self, scope: Scope, keys: usize) {
        let mut counts = self.counts();
        if counts.len() >= MOST {
            counts.retain(|_, count| count.at.elapsed() < FRESH);
        }
        if counts.len() < MOST {
            counts.insert(scope, Count { keys, at: Instant::now() });
        }
    }

    /// One more was let in.
    pub(crate) fn add(&self, scope: &Scope) {
        if let Some(count) = self.counts().get_mut(scope) {
            count.keys += 1;
        }
    }

    /// Whether this caller has all the keys it may have. A store that cannot
    /// tell does not refuse anybody: it is asked to admit right after this.
    pub(crate) async fn is_full<S: Receipts>(&self, store: &S, scope: &Scope, limit: usize) -> bool {
        if let Some(keys) = self.known(scope) {
            return keys >= limit;
        }
        let counted = tokio::time::timeout(PATIENCE, store.count(scope, limit)).await;
        match counted.unwrap_or_else(|_| Err(Error::new(Kind::Unavailable, "the store did not answer"))) {
            Ok(keys) => {
                self.learn(*scope, keys);
                keys >= limit
            }
            Err(error) => {
                tracing::debug!(error = %error.chain(), "the keys of a caller could not be counted");
                false
            }
        }
    }
}
