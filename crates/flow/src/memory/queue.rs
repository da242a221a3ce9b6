//! What one group has yet to acknowledge, and which of it may be delivered.
//!
//! Pure: time comes in as a parameter. An entry is ready, delayed, in flight,
//! or held back by an earlier entry of its lane; the first of a lane leaves it
//! only when it is acknowledged, and that is all there is to per-key order.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use oncebox_core::Envelope;
use oncebox_core::log::LaneKey;
use tokio::time::Instant;

/// How many candidates a shuffled pick looks at.
const SHUFFLED: usize = 64;

/// An entry's number: its place in the order of arrival.
pub(super) type Number = u64;

/// One message for one group.
struct Entry<T> {
    envelope: Arc<Envelope>,
    lane: Option<LaneKey>,
    attempt: u32,
    /// Copies go first and are in no lane.
    is_copy: bool,
    /// Who wants to know of the acknowledgement.
    receipt: Option<T>,
}

/// What is handed out.
pub(super) struct Taken {
    pub(super) number: Number,
    pub(super) envelope: Arc<Envelope>,
    pub(super) attempt: u32,
}

/// The messages of one group on one destination; `T` is handed back when one is acknowledged.
pub(super) struct Queue<T> {
    entries: HashMap<Number, Entry<T>>,
    next: Number,
    lanes: HashMap<LaneKey, VecDeque<Number>>,
    /// Copies sort before all others.
    ready: BTreeSet<(bool, Number)>,
    delayed: BTreeSet<(Instant, Number)>,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            next: 0,
            lanes: HashMap::new(),
            ready: BTreeSet::new(),
            delayed: BTreeSet::new(),
        }
    }

    /// Messages queued and in flight.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a message behind all others.
    pub(super) fn push(&mut self, envelope: Arc<Envelope>, receipt: Option<T>) {
        let lane = LaneKey::of(&envelope);
        let number = self.insert(Entry { envelope, lane: lane.clone(), attempt: 1, is_copy: false, receipt });
        let is_first = lane.is_none_or(|lane| {
            let lane = self.lanes.entry(lane).or_default();
            lane.push_back(number);
            lane.len() == 1
        });
        if is_first {
            self.make_ready(number);
        }
    }

    /// Adds a copy of a message that was handed out, free of any order.
    pub(super) fn push_copy(&mut self, taken: &Taken) {
        let envelope = Arc::clone(&taken.envelope);
        let copy = Entry { envelope, lane: None, attempt: taken.attempt, is_copy: true, receipt: None };
        let number = self.insert(copy);
        self.make_ready(number);
    }

    /// Hands out the next message. With a seed, unkeyed ones come in an order drawn from it.
    pub(super) fn take(&mut self, now: Instant, seed: Option<&mut u64>) -> Option<Taken> {
        while let Some((until, number)) = self.delayed.first().copied().filter(|(until, _)| *until <= now) {
            self.delayed.remove(&(until, number));
            self.make_ready(number);
        }
        let mut picked = *self.ready.first()?;
        if let Some(seed) = seed
            && self.is_unkeyed(picked)
        {
            let candidates = self.ready.iter().filter(|one| self.is_unkeyed(**one)).take(SHUFFLED);
            let candidates: Vec<_> = candidates.copied().collect();
            picked = draw(seed, &candidates).unwrap_or(picked);
        }
        self.ready.remove(&picked);
        let (_, number) = picked;
        let entry = self.entries.get(&number)?;
        Some(Taken { number, envelope: Arc::clone(&entry.envelope), attempt: entry.attempt })
    }

    /// When the next delayed message may be delivered.
    pub(super) fn next_delayed(&self) -> Option<Instant> {
        self.delayed.first().map(|(until, _)| *until)
    }

    /// Whether what was handed out is a copy.
    pub(super) fn is_copy(&self, number: Number) -> bool {
        self.entries.get(&number).is_some_and(|entry| entry.is_copy)
    }

    /// Forgets a message that was handed out, and lets the next of its lane go.
    pub(super) fn ack(&mut self, number: Number) -> Option<T> {
        let entry = self.entries.remove(&number)?;
        if let Some(key) = entry.lane
            && let Some(lane) = self.lanes.get_mut(&key)
        {
            lane.pop_front();
            match lane.front().copied() {
                Some(first) => self.make_ready(first),
                None => _ = self.lanes.remove(&key),
            }
        }
        entry.receipt
    }

    /// Takes a message back, to be handed out again; not before `until`, if given.
    pub(super) fn put_back(&mut self, number: Number, until: Option<Instant>, spent: bool) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.attempt = entry.attempt.saturating_add(u32::from(spent));
        match until {
            Some(until) => _ = self.delayed.insert((until, number)),
            None => self.make_ready(number),
        }
    }

    fn insert(&mut self, entry: Entry<T>) -> Number {
        let number = self.next;
        self.next += 1;
        self.entries.insert(number, entry);
        number
    }

    fn make_ready(&mut self, number: Number) {
        let is_copy = self.is_copy(number);
        self.ready.insert((!is_copy, number));
    }

    fn is_unkeyed(&self, (_, number): (bool, Number)) -> bool {
        self.entries.get(&number).is_some_and(|entry| entry.lane.is_none())
    }
}

/// One of `candidates`, by the next number of the SplitMix64 sequence in `seed`.
fn draw<C: Copy>(seed: &mut u64, candidates: &[C]) -> Option<C> {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *seed;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    let count = u64::try_from(candidates.len()).ok().filter(|count| *count > 0)?;
    candidates.get(usize::try_from(bits % count).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn queue(messages: &[(&str, &str)]) -> Queue<()> {
        let mut queue = Queue::new();
        for (id, key) in messages {
            let key = (!key.is_empty()).then(|| (*key).to_owned());
            queue.push(Arc::new(Envelope { id: (*id).into(), key, ..Envelope::default() }), None);
        }
        queue
    }

    fn drain(queue: &mut Queue<()>, now: Instant) -> Vec<Taken> {
        std::iter::from_fn(|| queue.take(now, None)).collect()
    }

    fn ids(taken: &[Taken]) -> Vec<&str> {
        taken.iter().map(|taken| taken.envelope.id.as_str()).collect()
    }

    #[test]
    fn a_key_has_one_message_out_at_a_time_and_in_order() {
        let now = Instant::now();
        let mut queue = queue(&[("a1", "a"), ("a2", "a"), ("b1", "b"), ("n", ""), ("a3", "a")]);

        let first = drain(&mut queue, now);
        assert_eq!(ids(&first), ["a1", "b1", "n"]);
        queue.ack(first[0].number);
        let second = drain(&mut queue, now);
        assert_eq!(ids(&second), ["a2"]);
        queue.ack(second[0].number);

        assert_eq!(ids(&drain(&mut queue, now)), ["a3"]);
    }

    #[test]
    fn a_delayed_head_blocks_its_key_only() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut queue = queue(&[("a1", "a"), ("a2", "a")]);
        let head = queue.take(now, None).unwrap();

        queue.put_back(head.number, Some(later), true);
        queue.push(Arc::new(Envelope { id: "n".into(), ..Envelope::default() }), None);

        assert_eq!(ids(&drain(&mut queue, now)), ["n"]);
        assert_eq!(queue.next_delayed(), Some(later));
        let again = drain(&mut queue, later);
        assert_eq!((ids(&again), again[0].attempt), (vec!["a1"], 2));
    }

    #[test]
    fn a_copy_goes_first_and_past_its_key() {
        let now = Instant::now();
        let mut queue = queue(&[("a1", "a"), ("n", "")]);
        let head = queue.take(now, None).unwrap();

        queue.push_copy(&head);

        let rest = drain(&mut queue, now);
        assert_eq!(ids(&rest), ["a1", "n"]);
        queue.ack(rest[0].number);
        assert_eq!(queue.len(), 2, "the original is still in flight");
    }

    #[test]
    fn a_seed_shuffles_unkeyed_messages_and_keeps_keys_in_order() {
        let now = Instant::now();
        let messages: Vec<(String, &str)> =
            (0..40).map(|n| (format!("{n:02}"), if n % 2 == 0 { "" } else { "k" })).collect();
        let messages: Vec<(&str, &str)> = messages.iter().map(|(id, key)| (id.as_str(), *key)).collect();
        let order = |seed: u64| {
            let (mut queue, mut seed, mut order) = (queue(&messages), seed, Vec::new());
            while let Some(taken) = queue.take(now, Some(&mut seed)) {
                queue.ack(taken.number);
                order.push(taken.envelope.id.clone());
            }
            order
        };
        let split = |order: &[String]| -> (Vec<String>, Vec<String>) {
            order.iter().cloned().partition(|id| id.parse::<u32>().unwrap() % 2 == 0)
        };

        let (unkeyed, keyed) = split(&order(7));

        assert_eq!(order(7), order(7));
        assert!(keyed.is_sorted() && keyed.len() == 20);
        assert!(!unkeyed.is_sorted() && unkeyed.len() == 20);
    }
}
