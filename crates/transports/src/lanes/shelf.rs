//! The deliveries of a feed: which wait behind one of their key, which may go,
//! which are out. No clock, no I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use oncebox_core::log::LaneKey;
use oncebox_core::{Delivery, Envelope};
use tokio::time::Instant;

/// Grows with every arrival.
pub(super) type Number = u64;

struct Entry<A> {
    envelope: Envelope,
    attempt: u32,
    /// Gone once the broker will deliver the message again by itself.
    answer: Option<Arc<A>>,
    lane: Option<LaneKey>,
    identity: Option<u64>,
    is_out: bool,
}

/// The shelf. Everything in `lanes` but the first of each waits behind it.
pub(super) struct Shelf<A> {
    entries: BTreeMap<Number, Entry<A>>,
    lanes: HashMap<LaneKey, VecDeque<Number>>,
    /// By turns rather than by age: what is refused without delay would
    /// otherwise be all that is ever handed out.
    ready: VecDeque<Number>,
    delayed: BTreeSet<(Instant, Number)>,
    identities: HashMap<u64, Number>,
    next: Number,
    /// Entries without an answer.
    orphans: usize,
    is_closed: bool,
}

impl<A> Default for Shelf<A> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            delayed: BTreeSet::new(),
            identities: HashMap::new(),
            next: 0,
            orphans: 0,
            is_closed: false,
        }
    }
}

impl<A> Shelf<A> {
    /// How many the broker waits for.
    pub(super) fn len(&self) -> usize {
        self.entries.len().saturating_sub(self.orphans)
    }

    pub(super) fn delayed(&self) -> usize {
        self.delayed.len()
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn is_in_lane(&self, number: Number) -> bool {
        self.entries.get(&number).is_some_and(|entry| entry.lane.is_some())
    }

    /// When the next delayed one may go.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(until, _)| *until)
    }

    /// Every answer the broker waits for.
    pub(super) fn answers(&self) -> Vec<Arc<A>> {
        self.entries.values().filter_map(|entry| entry.answer.clone()).collect()
    }

    /// The answer and the attempt of one that is out, unless it is an orphan.
    pub(super) fn standing(&self, number: Number) -> Option<(Arc<A>, u32)> {
        let entry = self.entries.get(&number)?;
        Some((entry.answer.clone()?, entry.attempt))
    }

    /// The first that may go, marked as out.
    pub(super) fn take(&mut self, now: Instant) -> Option<Delivery<Number>> {
        while let Some((_, number)) = self.delayed.first().copied().filter(|(until, _)| *until <= now) {
            self.delayed.pop_first();
            self.ready.push_back(number);
        }
        let number = self.ready.pop_front()?;
        let entry = self.entries.get_mut(&number)?;
        entry.is_out = true;
        Some(Delivery { envelope: entry.envelope.clone(), attempt: entry.attempt, ack: number })
    }

    /// Takes back one that was out: not before `until`, if given. Handed over
    /// instead if the shelf is closed.
    pub(super) fn put_back(
        &mut self,
        number: Number,
        until: Option<Instant>,
        spent: bool,
    ) -> Option<Delivery<Arc<A>>> {
        let entry = self.entries.get_mut(&number)?;
        entry.attempt = entry.attempt.saturating_add(u32::from(spent));
        if self.is_closed || entry.answer.is_none() {
            return self.finish(number);
        }
        entry.is_out = false;
        match until {
            Some(until) => _ = self.delayed.insert((until, number)),
            None => self.ready.push_back(number),
        }
        None
    }

    /// The broker may deliver this one again from here on: that is no copy then.
    pub(super) fn leave(&mut self, number: Number) {
        if let Some(entry) = self.entries.get_mut(&number)
            && let Some(identity) = entry.identity.take()
        {
            self.identities.remove(&identity);
        }
    }

    /// Forgets one that was out, and lets the next of its lane go.
    pub(super) fn finish(&mut self, number: Number) -> Option<Delivery<Arc<A>>> {
        self.leave(number);
        let entry = self.entries.remove(&number)?;
        if let Some(key) = entry.lane
            && let Some(lane) = self.lanes.get_mut(&key)
        {
            lane.pop_front();
            match lane.front().copied() {
                Some(first) => self.ready.push_back(first),
                None => _ = self.lanes.remove(&key),
            }
        }
        let Some(answer) = entry.answer else {
            self.orphans = self.orphans.saturating_sub(1);
            return None;
        };
        Some(Delivery { envelope: entry.envelope, attempt: entry.attempt, ack: answer })
    }

    /// Makes an orphan of each that is out and forgets the others.
    pub(super) fn reset(&mut self) {
        self.remove_waiting();
        for entry in self.entries.values_mut() {
            entry.answer = None;
            entry.identity = None;
        }
        self.identities.clear();
        self.orphans = self.entries.len();
    }

    /// Hands over all that are not out, by arrival, and takes nothing back from here on.
    pub(super) fn close(&mut self) -> Vec<Delivery<Arc<A>>> {
        self.is_closed = true;
        self.remove_waiting()
    }

    fn remove_waiting(&mut self) -> Vec<Delivery<Arc<A>>> {
        self.ready.clear();
        self.delayed.clear();
        let mut removed = Vec::new();
        for (_, entry) in self.entries.extract_if(.., |_, entry| !entry.is_out) {
            if let Some(identity) = entry.identity {
                self.identities.remove(&identity);
            }
            if let Some(answer) = entry.answer {
                removed.push(Delivery { envelope: entry.envelope, attempt: entry.attempt, ack: answer });
            }
        }
        let entries = &self.entries;
        self.lanes.retain(|_, lane| {
            lane.retain(|number| entries.contains_key(number));
            !lane.is_empty()
        });
        removed
    }
}

impl<A: super::Answer> Shelf<A> {
    /// Adds an arrival; false if it is a copy of one that is here.
    pub(super) fn push(&mut self, delivery: Delivery<A>, lane: Option<LaneKey>) -> bool {
        let Delivery { envelope, attempt, ack: answer } = delivery;
        let identity = answer.identity();
        let number = self.next;
        if let Some(identity) = identity {
            if self.identities.contains_key(&identity) {
                return false;
            }
            self.identities.insert(identity, number);
        }
        self.next += 1;
        let waits = match &lane {
            Some(key) => {
                let queue = self.lanes.entry(key.clone()).or_default();
                queue.push_back(number);
                queue.len() > 1
            }
            None => false,
        };
        if !waits {
            self.ready.push_back(number);
        }
        let answer = Some(Arc::new(answer));
        self.entries.insert(number, Entry { envelope, attempt, answer, lane, identity, is_out: false });
        true
    }
}
