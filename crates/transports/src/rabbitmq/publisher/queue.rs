//! Which messages of a batch may be under way at once. No clock, no I/O.
//!
//! A message of a key goes when the one before it is confirmed, so that a
//! refused one has nothing of its key behind it in the queue. Messages of other
//! keys and without a key do not wait.

use std::collections::{HashMap, VecDeque};

use oncebox_core::transport::Class;
use oncebox_core::{Envelope, Failure};

/// A message's place in its batch.
pub(super) type Place = usize;

/// The messages of one key.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Place>,
    /// Handed out and not answered yet.
    out: usize,
    /// What became of an earlier one, if it was not confirmed.
    halted: Option<Failure>,
}

/// The bounds of what is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Messages.
    pub(super) window: usize,
    /// Bytes of their payloads; the first message always goes.
    pub(super) bytes: usize,
    /// Messages of one key.
    pub(super) key_window: usize,
}

/// A batch on its way.
pub(super) struct Queue<'b> {
    batch: &'b [Envelope],
    bounds: Bounds,
    lanes: Vec<Lane>,
    lane_of: Vec<Option<usize>>,
    ready: VecDeque<Place>,
    results: Vec<Option<Result<(), Failure>>>,
}

impl<'b> Queue<'b> {
    pub(super) fn new(batch: &'b [Envelope], bounds: Bounds) -> Self {
        let mut lanes: Vec<Lane> = Vec::new();
        let mut numbers: HashMap<(&str, &str), usize> = HashMap::new();
        let mut ready = VecDeque::with_capacity(batch.len());
        let mut lane_of = Vec::with_capacity(batch.len());
        for (place, envelope) in batch.iter().enumerate() {
            let number = envelope.key.as_deref().map(|key| {
                *numbers.entry((envelope.tenant.as_str(), key)).or_insert_with(|| {
                    lanes.push(Lane::default());
                    lanes.len() - 1
                })
            });
            lane_of.push(number);
            match number.and_then(|number| lanes.get_mut(number)) {
                Some(lane) => lane.waiting.push_back(place),
                None => ready.push_back(place),
            }
        }
        let mut queue = Self { batch, bounds, lanes, lane_of, ready, results: vec![None; batch.len()] };
        (0..queue.lanes.len()).for_each(|lane| queue.release(lane));
        queue.ready.make_contiguous().sort_unstable();
        queue
    }

    /// The messages to be sent next, in order; none when all are answered.
    pub(super) fn take(&mut self) -> Vec<Place> {
        let (mut wave, mut bytes) = (Vec::new(), 0_usize);
        while let Some(place) = self.ready.front().copied() {
            let size = self.batch.get(place).map_or(0, |envelope| envelope.payload.len());
            let is_full = wave.len() >= self.bounds.window || bytes.saturating_add(size) > self.bounds.bytes;
            if is_full && !wave.is_empty() {
                break;
            }
            self.ready.pop_front();
            // Of a key that came to a halt after it was made ready.
            if self.results.get(place).is_some_and(Option::is_none) {
                bytes = bytes.saturating_add(size);
                wave.push(place);
            }
        }
        wave
    }

    /// What became of a message that was taken.
    pub(super) fn answer(&mut self, place: Place, result: Result<(), Failure>) {
        let failure = result.as_ref().err().cloned();
        if let Some(slot) = self.results.get_mut(place) {
            *slot = Some(result);
        }
        let Some(number) = self.lane_of.get(place).copied().flatten() else { return };
        let Some(lane) = self.lanes.get_mut(number) else { return };
        lane.out = lane.out.saturating_sub(1);
        if let Some(failure) = failure {
            lane.halted.get_or_insert(failure);
        }
        if lane.halted.is_some() {
            self.halt(number, place);
        } else if lane.out == 0 {
            self.release(number);
        }
    }

    /// The results, `rest` for whatever was not sent.
    pub(super) fn finish(self, rest: &Failure) -> Vec<Result<(), Failure>> {
        self.results.into_iter().map(|result| result.unwrap_or_else(|| Err(rest.clone()))).collect()
    }

    /// Makes the next messages of a lane ready: as many as a key may have under
    /// way, and all by the same route. A route that is missing stays missing, so
    /// that what follows by another would overtake for certain.
    fn release(&mut self, number: usize) {
        let Some(lane) = self.lanes.get_mut(number) else { return };
        let Some(first) = lane.waiting.front().and_then(|place| self.batch.get(*place)) else { return };
        while lane.out < self.bounds.key_window {
            let next = lane.waiting.front().copied();
            let is_along = |envelope: &&Envelope| {
                envelope.destination == first.destination && envelope.kind == first.kind
            };
            let Some(place) = next.filter(|place| self.batch.get(*place).as_ref().is_some_and(is_along))
            else {
                return;
            };
            lane.waiting.pop_front();
            lane.out += 1;
            self.ready.push_back(place);
        }
    }

    /// Nothing more of this lane is sent. What is out already is answered by itself.
    fn halt(&mut self, number: usize, after: Place) {
        let Some(lane) = self.lanes.get_mut(number) else { return };
        let Some(cause) = lane.halted.as_ref() else { return };
        let behind = held_back(cause);
        let unsent =
            self.ready.iter().filter(|place| self.lane_of.get(**place).copied().flatten() == Some(number));
        let unsent: Vec<Place> = lane.waiting.drain(..).chain(unsent.copied()).collect();
        for place in unsent.into_iter().filter(|place| *place > after) {
            if let Some(slot) = self.results.get_mut(place) {
                slot.get_or_insert_with(|| Err(behind.clone()));
            }
        }
    }
}

/// The failure of what was not sent because of `cause`. A message that was
/// refused says nothing about its destination, so neither do those behind it.
fn held_back(cause: &Failure) -> Failure {
    let reason = format!("not sent: an earlier message of its key was not confirmed: {}", cause.reason);
    match cause.class {
        Class::Destination | Class::Unknown => Failure { class: cause.class, ..Failure::destination(reason) },
        Class::Message | Class::Pending => Failure::pending(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { window: 100, bytes: 1 << 20, key_window: 1 };

    fn batch(keys: &[&str]) -> Vec<Envelope> {
        let key = |key: &&str| (!key.is_empty()).then(|| (*key).to_owned());
        keys.iter().map(|k| Envelope { key: key(k), payload: vec![0; 10], ..Envelope::default() }).collect()
    }

    /// Confirms everything; the waves it took.
    fn waves(queue: &mut Queue<'_>) -> Vec<Vec<Place>> {
        let mut waves = Vec::new();
        loop {
            let wave = queue.take();
            if wave.is_empty() {
                return waves;
            }
            wave.iter().for_each(|place| queue.answer(*place, Ok(())));
            waves.push(wave);
        }
    }

    fn classes(results: &[Result<(), Failure>]) -> Vec<Option<Class>> {
        results.iter().map(|result| result.as_ref().err().map(|failure| failure.class)).collect()
    }

    #[test]
    fn a_key_has_one_message_under_way_and_the_others_do_not_wait() {
        let batch = batch(&["a", "", "a", "b", "", "a"]);

        assert_eq!(waves(&mut Queue::new(&batch, BOUNDS)), [vec![0, 1, 3, 4], vec![2], vec![5]]);
    }

    #[test]
    fn equal_keys_of_two_tenants_do_not_wait_for_each_other() {
        let mut batch = batch(&["a", "a"]);
        batch[1].tenant = "other".into();

        assert_eq!(waves(&mut Queue::new(&batch, BOUNDS)), [vec![0, 1]]);
    }

    #[test]
    fn the_window_is_kept_in_messages_and_in_bytes() {
        let batch = batch(&[""; 5]);

        let by_count = waves(&mut Queue::new(&batch, Bounds { window: 2, ..BOUNDS }));
        let by_bytes = waves(&mut Queue::new(&batch, Bounds { bytes: 25, ..BOUNDS }));
        let tight = waves(&mut Queue::new(&batch, Bounds { bytes: 1, ..BOUNDS }));

        assert_eq!(by_count, [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(by_bytes, by_count);
        assert_eq!(tight.len(), 5, "one message always goes");
    }

    #[test]
    fn what_follows_a_refused_message_of_its_key_is_not_sent() {
        let batch = batch(&["a", "a", "b", "b", "a"]);
        let mut queue = Queue::new(&batch, BOUNDS);
        assert_eq!(queue.take(), [0, 2]);

        queue.answer(0, Err(Failure::destination("unroutable")));
        queue.answer(2, Ok(()));
        assert_eq!(queue.take(), [3]);
        queue.answer(3, Err(Failure::message("too large").permanently()));

        assert!(queue.take().is_empty());
        let results = queue.finish(&Failure::unknown("none is left"));
        let of = |class| Some(class);
        let expected = [
            of(Class::Destination),
            of(Class::Destination),
            None,
            of(Class::Message),
            of(Class::Destination),
        ];
        assert_eq!(classes(&results), expected);
    }

    #[test]
    fn behind_a_message_that_was_refused_for_itself_the_destination_is_not_blamed() {
        let batch = batch(&["a", "a"]);
        let mut queue = Queue::new(&batch, BOUNDS);
        queue.take();

        queue.answer(0, Err(Failure::message("too large").permanently()));

        let results = queue.finish(&Failure::unknown("none is left"));
        assert_eq!(classes(&results), [Some(Class::Message), Some(Class::Pending)]);
    }

    #[test]
    fn a_wider_window_of_a_key_ends_where_its_route_changes() {
        let mut batch = batch(&["a", "a", "a", "a", "a"]);
        batch[3].kind = "another".into();

        let waves = waves(&mut Queue::new(&batch, Bounds { key_window: 2, ..BOUNDS }));

        assert_eq!(waves, [vec![0, 1], vec![2], vec![3], vec![4]]);
    }

    #[test]
    fn a_wide_window_of_a_key_sends_nothing_after_a_failure() {
        let batch = batch(&["a", "a", "a", "a"]);
        let mut queue = Queue::new(&batch, Bounds { window: 2, key_window: 3, ..BOUNDS });
        assert_eq!(queue.take(), [0, 1]);

        queue.answer(0, Err(Failure::unknown("late")));
        queue.answer(1, Ok(()));

        assert!(queue.take().is_empty());
        let results = queue.finish(&Failure::destination("none is left"));
        let unknown = Some(Class::Unknown);
        assert_eq!(classes(&results), [unknown, None, unknown, unknown]);
    }

    #[test]
    fn what_was_never_sent_gets_the_given_failure() {
        let batch = batch(&["a", "a", ""]);
        let mut queue = Queue::new(&batch, BOUNDS);
        queue.take();
        queue.answer(0, Ok(()));

        let results = queue.finish(&Failure::pending("later"));

        assert_eq!(classes(&results), [None, Some(Class::Pending), Some(Class::Pending)]);
    }
}
