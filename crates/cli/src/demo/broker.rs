//! The demo's broker: at least once, and not kind about it.
//!
//! It keeps what it confirmed, redelivers what was not acked, repeats some
//! deliveries, hands them out in a shuffled order, and refuses everything
//! during an outage.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use super::schedule::{Dice, Schedule};
use super::wire::{KillPoint, Parcel, ToWorker};

/// Deliveries a worker may hold unanswered.
const PREFETCH: usize = 16;
/// The next delivery is picked from this many at the head of the queue.
const SHUFFLE: u64 = 6;

struct Queued {
    parcel: Parcel,
    attempt: u32,
    number: u64,
}

/// One lane's broker.
pub(super) struct Broker {
    schedule: Arc<Schedule>,
    queue: VecDeque<Queued>,
    unanswered: BTreeMap<u64, Queued>,
    repeated: HashSet<u32>,
    killed: HashSet<u32>,
    dice: Dice,
    next_tag: u64,
    next_number: u64,
    newest: u64,
    down: bool,
    pub(super) duplicates: u32,
    pub(super) reordered: u32,
}

impl Broker {
    pub(super) fn new(schedule: Arc<Schedule>) -> Self {
        let dice = Dice::new(schedule.seed);
        Self {
            schedule,
            queue: VecDeque::new(),
            unanswered: BTreeMap::new(),
            repeated: HashSet::new(),
            killed: HashSet::new(),
            dice,
            next_tag: 0,
            next_number: 0,
            newest: 0,
            down: false,
            duplicates: 0,
            reordered: 0,
        }
    }

    pub(super) const fn set_down(&mut self, down: bool) {
        self.down = down;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.unanswered.is_empty()
    }

    /// Takes a message; false during an outage.
    pub(super) fn publish(&mut self, parcel: Parcel) -> bool {
        if self.down {
            return false;
        }
        let repeat = self.schedule.is_duplicated(parcel.order) && self.repeated.insert(parcel.order);
        if repeat {
            self.duplicates += 1;
            self.enqueue(parcel.clone());
        }
        self.enqueue(parcel);
        true
    }

    fn enqueue(&mut self, parcel: Parcel) {
        self.next_number += 1;
        self.queue.push_back(Queued { parcel, attempt: 1, number: self.next_number });
    }

    /// The next delivery, if the worker may have one more.
    pub(super) fn deliver(&mut self) -> Option<ToWorker> {
        if self.unanswered.len() >= PREFETCH || self.down {
            return None;
        }
        let pick = self.dice.below(SHUFFLE) as usize % self.queue.len().max(1);
        let queued = self.queue.remove(pick)?;
        self.reordered += u32::from(queued.number < self.newest);
        self.newest = self.newest.max(queued.number);
        let (order, attempt) = (queued.parcel.order, queued.attempt);
        let kill = self.schedule.kill(order).filter(|point| *point == KillPoint::Applied);
        let kill = kill.filter(|_| !self.killed.contains(&order));
        self.next_tag += 1;
        let message = ToWorker::Deliver { tag: self.next_tag, attempt, parcel: queued.parcel.clone(), kill };
        self.unanswered.insert(self.next_tag, queued);
        Some(message)
    }

    /// A worker has died over this order; each order kills once.
    pub(super) fn killed(&mut self, order: u32) {
        self.killed.insert(order);
    }

    pub(super) fn ack(&mut self, tag: u64) {
        self.unanswered.remove(&tag);
    }

    pub(super) fn nack(&mut self, tag: u64) {
        if let Some(queued) = self.unanswered.remove(&tag) {
            self.queue.push_back(Queued { attempt: queued.attempt + 1, ..queued });
        }
    }

    /// The worker is gone: what it had not answered comes again.
    pub(super) fn disconnected(&mut self) {
        for (_, queued) in std::mem::take(&mut self.unanswered).into_iter().rev() {
            self.queue.push_front(Queued { attempt: queued.attempt + 1, ..queued });
        }
    }
}
