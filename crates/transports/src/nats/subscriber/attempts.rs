//! How often a message was tried, as far as this process knows.
//!
//! The server counts deliveries. Some of them were not tries (given back unspent),
//! and some tries were not deliveries (made again here without asking the server).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::topology::Durable;

/// Messages of which more is known than the server tells.
const MAX_KNOWN: usize = 10_000;

#[derive(Debug, PartialEq, Eq, Hash)]
struct Place {
    stream: String,
    consumer: String,
    sequence: u64,
}

impl Place {
    fn of(durable: &Durable, sequence: u64) -> Self {
        Self { stream: durable.stream.clone(), consumer: durable.name.clone(), sequence }
    }
}

/// What was true when a message was given back.
#[derive(Debug)]
struct Tally {
    /// Deliveries the server had counted.
    delivered: u64,
    /// The attempt the next of them is.
    next: u32,
}

/// The tallies of messages that were given back.
#[derive(Debug, Default)]
pub(in super::super) struct Attempts {
    tallies: Mutex<HashMap<Place, Tally>>,
}

impl Attempts {
    /// The attempt of a delivery that the server counts as number `delivered`.
    pub(super) fn of(&self, durable: &Durable, sequence: u64, delivered: u64) -> u32 {
        let counted = |count: u64| u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        match self.tallies().remove(&Place::of(durable, sequence)) {
            Some(tally) => {
                let others = delivered.saturating_sub(tally.delivered.saturating_add(1));
                tally.next.saturating_add(u32::try_from(others).unwrap_or(u32::MAX))
            }
            None => counted(delivered),
        }
    }

    /// Notes that a delivery is given back, and which attempt the next one is.
    pub(super) fn note(&self, durable: &Durable, sequence: u64, delivered: u64, next: u32) {
        let mut tallies = self.tallies();
        if tallies.len() >= MAX_KNOWN {
            tallies.clear();
        }
        tallies.insert(Place::of(durable, sequence), Tally { delivered, next });
    }

    /// Forgets a message that will not come again.
    pub(super) fn forget(&self, durable: &Durable, sequence: u64) {
        let mut tallies = self.tallies();
        if !tallies.is_empty() {
            tallies.remove(&Place::of(durable, sequence));
        }
    }

    fn tallies(&self) -> MutexGuard<'_, HashMap<Place, Tally>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn durable() -> Durable {
        Durable {
            stream: "S".into(),
            name: "c".into(),
            ack_wait: Duration::from_secs(30),
            max_deliver: 0,
            is_pinned: false,
        }
    }

    #[test]
    fn what_was_given_back_unspent_is_not_counted() {
        let (attempts, durable) = (Attempts::default(), durable());

        assert_eq!(attempts.of(&durable, 7, 1), 1);
        attempts.note(&durable, 7, 1, 1);
        assert_eq!(attempts.of(&durable, 7, 2), 1);
        attempts.note(&durable, 7, 2, 2);
        assert_eq!(attempts.of(&durable, 7, 3), 2);
    }

    #[test]
    fn deliveries_to_others_in_between_count() {
        let (attempts, durable) = (Attempts::default(), durable());

        attempts.note(&durable, 7, 2, 5);

        assert_eq!(attempts.of(&durable, 7, 5), 7);
        assert_eq!(attempts.of(&durable, 8, 5), 5, "nothing is known of others");
    }
}
