//! What waits to be stored, and which of it goes next.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Entry, Share};

/// The most deposits of one transaction, and about how many bytes they carry.
const BATCH: usize = 1_000;
const BATCH_BYTES: usize = 4 << 20;
/// The most of their shares that are in order: each may take a lock, and
/// PostgreSQL has room for a few thousand.
const BATCH_LANES: usize = 200;
/// So many are worth a transaction beside the one that runs.
const CROWD: usize = 250;
/// The most transactions at once.
const AT_ONCE: usize = 3;

/// What waits to be stored, and what is being stored.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Entry>,
    running: usize,
    /// The one that runs keeps to an order.
    is_ordered: bool,
    /// What is being stored.
    names: HashSet<u64>,
    hasher: RandomState,
}

impl Queue {
    /// The next entries to store, if their time has come: at once if nothing
    /// runs, beside another if it is a crowd.
    ///
    /// What is in order is stored with nothing beside it, or the later of two
    /// batches could come first. Copies of what is being stored wait for it: two
    /// transactions with the same copies could wait for each other.
    fn next_batch(&mut self) -> Option<(Vec<Entry>, Vec<u64>)> {
        let is_free = self.running == 0;
        if !is_free && (self.running >= AT_ONCE || self.is_ordered || self.waiting.len() < CROWD) {
            return None;
        }
        let (mut bytes, mut lanes, mut names) = (0, 0, Vec::new());
        let fits = |entry: &&Entry| {
            let is_new = entry.names(&self.hasher).all(|name| !self.names.contains(&name));
            if bytes >= BATCH_BYTES || lanes >= BATCH_LANES || !is_new {
                return false;
            }
            names.extend(entry.names(&self.hasher));
            bytes += entry.envelope.payload.len();
            lanes += entry.shares.iter().filter(|share| share.lane.is_some()).count();
            true
        };
        let count = self.waiting.iter().take(BATCH).take_while(fits).count();
        if !is_free && (lanes > 0 || count < CROWD) {
            return None;
        }
        self.running += 1;
        self.is_ordered = lanes > 0;
        self.names.extend(&names);
        Some((self.waiting.drain(..count).collect(), names))
    }

    fn is_stored(&mut self, names: &[u64]) {
        self.running -= 1;
        for name in names {
            self.names.remove(name);
        }
    }
}

impl Entry {
    /// What tells copies from others: the message's name, and each share's. Two
    /// that only seem equal wait for each other in vain, and that is all.
    fn names(&self, hasher: &RandomState) -> impl Iterator<Item = u64> {
        let message = hasher.hash_one((&self.envelope.source, &self.envelope.id));
        let shares = self.shares.iter();
        let of_share =
            |share: &Share| hasher.hash_one((share.handler.as_str(), &share.key.source, &share.key.id));
        std::iter::once(message).chain(shares.map(of_share))
    }
}

/// The queue, and word of what happens to it.
#[derive(Default)]
pub(super) struct Counter {
    queue: Mutex<Queue>,
    /// A crowd has come, or a batch is stored.
    changed: Notify,
}

impl Counter {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, entry: Entry) {
        let mut queue = self.queue();
        queue.waiting.push_back(entry);
        let is_crowd = queue.waiting.len() == CROWD;
        drop(queue);
        if is_crowd {
            self.changed.notify_one();
        }
    }

    /// Only one waits here at a time: whoever has the turn.
    pub(super) async fn next_batch(self: &Arc<Self>) -> Taken {
        loop {
            let next = self.queue().next_batch();
            if let Some((batch, names)) = next {
                return Taken { batch, names, counter: Arc::clone(self) };
            }
            self.changed.notified().await;
        }
    }

    fn is_stored(&self, names: &[u64]) {
        self.queue().is_stored(names);
        self.changed.notify_one();
    }
}

/// A batch off the queue. The next one may go when this one is gone, however it ends.
pub(super) struct Taken {
    pub(super) batch: Vec<Entry>,
    names: Vec<u64>,
    counter: Arc<Counter>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.counter.is_stored(&self.names);
    }
}

#[cfg(test)]
mod tests {
    use oncebox_core::handler::MessageKey;
    use oncebox_core::{Envelope, HandlerKey};
    use tokio::sync::oneshot;

    use super::*;

    fn entry(id: usize, lane: Option<&str>) -> Entry {
        let (id, source) = (id.to_string(), "shop".to_owned());
        let share = Share {
            handler: HandlerKey::new("h"),
            marker: "h".to_owned(),
            key: MessageKey { source: source.clone(), id: id.clone() },
            lane: lane.map(str::to_owned),
            window: None,
            refused: None,
            frees_lane: false,
        };
        Entry {
            scope: String::new(),
            channel: "orders".to_owned(),
            envelope: Envelope { id, source, ..Envelope::default() },
            shares: vec![share],
            answer: oneshot::channel().0,
        }
    }

    /// A queue in which the first batch is being stored, with its names.
    fn at_work(first: impl IntoIterator<Item = Entry>) -> (Queue, Vec<u64>) {
        let mut queue = Queue { waiting: first.into_iter().collect(), ..Queue::default() };
        let (_, names) = queue.next_batch().unwrap();
        (queue, names)
    }

    fn ids(batch: Option<(Vec<Entry>, Vec<u64>)>) -> Vec<usize> {
        batch.map_or(Vec::new(), |(batch, _)| {
            batch.iter().map(|entry| entry.envelope.id.parse().unwrap()).collect()
        })
    }

    #[test]
    fn a_few_wait_and_crowds_go_beside_the_one_that_runs_but_no_fourth() {
        let (mut queue, _) = at_work([entry(0, None)]);
        queue.waiting.extend((1..CROWD).map(|id| entry(id, None)));
        assert!(queue.next_batch().is_none(), "one more would be a crowd");
        queue.waiting.push_back(entry(CROWD, None));

        assert_eq!(ids(queue.next_batch()), (1..=CROWD).collect::<Vec<_>>());

        queue.waiting.extend((1000..3500).map(|id| entry(id, None)));
        assert_eq!(ids(queue.next_batch()), (1000..2000).collect::<Vec<_>>());
        assert!(queue.next_batch().is_none(), "three are enough");
    }

    #[test]
    fn what_is_in_order_has_nothing_beside_it() {
        let (mut queue, names) = at_work([entry(0, None)]);
        queue.waiting.extend((1..=CROWD).map(|id| entry(id, (id == CROWD).then_some("red"))));
        assert!(queue.next_batch().is_none(), "one of them is in order");
        queue.is_stored(&names);
        assert_eq!(ids(queue.next_batch()).len(), CROWD);
        queue.waiting.extend((1000..1000 + CROWD).map(|id| entry(id, None)));

        assert!(queue.next_batch().is_none(), "what is in order runs");
    }

    #[test]
    fn copies_of_what_is_being_stored_wait_for_it() {
        let (mut queue, names) = at_work([entry(7, None)]);
        queue.waiting.extend((100..100 + CROWD).map(|id| entry(id, None)));
        queue.waiting.extend([entry(7, None), entry(8, None)]);

        let beside = queue.next_batch();

        assert_eq!(ids(beside), (100..100 + CROWD).collect::<Vec<_>>(), "up to the copy");
        queue.is_stored(&names);
        queue.waiting.extend((1000..1000 + CROWD).map(|id| entry(id, None)));
        assert_eq!(ids(queue.next_batch()).len(), CROWD + 2, "it is stored, and its copy may go");
    }
}
