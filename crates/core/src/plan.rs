//! The relay's decisions: which rows may be sent, and what may be settled.
//!
//! Pure, because everything the relay promises about order and loss is decided
//! here: a message is settled only if it was confirmed *and* every earlier
//! message of its lane was; a refused message parks its lane and nothing else;
//! an outage parks nothing and spends nothing.

use std::collections::{HashMap, HashSet};

use crate::envelope::Envelope;
use crate::log::{LaneKey, MAX_BLOCKED, Park, Parking, Position, Row, Shard};
use crate::transport::{Class, Failure};
use crate::verdict::RetryPolicy;

/// Where a message to be sent stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its position.
    pub position: Position,
    /// Its shard.
    pub shard: Shard,
    /// Attempts already spent on it.
    pub attempts: u32,
}

/// Rows sorted into those that may be sent and those that may not.
/// `slots` and `envelopes` run in parallel.
#[derive(Debug, Default)]
pub struct Batch {
    /// Where each envelope stands.
    pub slots: Vec<Slot>,
    /// What is sent, in order.
    pub envelopes: Vec<Envelope>,
    /// Rows that must be put beside the log instead.
    pub park: Vec<Park>,
}

impl Batch {
    /// Sorts rows of the log: a row whose lane is blocked waits behind it, a
    /// row that cannot be understood is dead on arrival.
    #[must_use]
    pub fn of_rows(rows: Vec<Row>, blocked: &Blocked) -> Self {
        let mut batch = Self::default();
        for row in rows {
            match &row.envelope {
                Ok(envelope) if blocked.holds_back(envelope) => batch.park.push(Park {
                    position: row.position,
                    shard: row.shard,
                    lane: LaneKey::of(envelope),
                    parking: Parking::Behind,
                    attempts: 0,
                    reason: None,
                }),
                _ => batch.push_row(row, 0),
            }
        }
        batch
    }

    /// Adds a row that may be sent, or buries it if it cannot be understood.
    pub fn push_row(&mut self, row: Row, attempts: u32) {
        let slot = Slot { position: row.position, shard: row.shard, attempts };
        match row.envelope {
            Ok(envelope) => self.push(slot, envelope),
            Err(reason) => self.park.push(dead(slot, None, attempts, reason)),
        }
    }

    /// Adds one message.
    pub fn push(&mut self, slot: Slot, envelope: Envelope) {
        self.slots.push(slot);
        self.envelopes.push(envelope);
    }
}

/// The lanes that have parked rows.
#[derive(Clone, Debug, Default)]
pub struct Blocked {
    lanes: HashSet<LaneKey>,
    /// There are more than anybody lists; a lane that is held back for nothing
    /// is freed when its row is parked.
    is_every_lane: bool,
}

impl Blocked {
    /// These lanes, or all of them if these are too many to be all.
    #[must_use]
    pub fn new(lanes: Vec<LaneKey>) -> Self {
        Self { is_every_lane: lanes.len() > MAX_BLOCKED, lanes: lanes.into_iter().collect() }
    }

    /// Adds lanes.
    pub fn extend(&mut self, lanes: Vec<LaneKey>) {
        self.lanes.extend(lanes);
        self.is_every_lane |= self.lanes.len() > MAX_BLOCKED;
    }

    fn holds_back(&self, envelope: &Envelope) -> bool {
        // The common case allocates nothing.
        if self.lanes.is_empty() {
            return false;
        }
        LaneKey::of(envelope).is_some_and(|lane| self.is_every_lane || self.lanes.contains(&lane))
    }
}

/// Whether a dead letter goes on blocking the later messages of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// Order before progress: the key waits for an operator.
    #[default]
    BlockKey,
    /// Progress before order: the key goes on with a gap.
    SkipKey,
}

/// What came of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Confirmed, with all before them in their lane.
    pub settled: Vec<Position>,
    /// Not confirmed through no fault of their own: to be sent again.
    pub unsettled: Vec<Position>,
    /// Refused, or behind one that was.
    pub park: Vec<Park>,
    /// Lanes that are blocked from here on.
    pub blocked: Vec<LaneKey>,
    /// Why the destination is not usable, if it is not.
    pub outage: Option<String>,
    /// Whether confirms are still to come from a transport that is merely slow.
    pub pending: bool,
}

/// What stopped a lane within a batch.
enum Halt {
    Unsettled,
    Parked,
}

/// The lanes of a batch that have come to a halt, and the rules they go by.
struct Lanes<'p> {
    halted: HashMap<LaneKey, Halt>,
    /// Destinations that confirmed something in this batch.
    alive: HashSet<&'p str>,
    policy: &'p RetryPolicy,
    on_dead: OnDead,
    chance: f64,
}

/// Decides a batch from its results, one for each envelope in order. Missing
/// results count as unknown: a transport that answers short confirms nothing.
#[must_use]
pub fn decide(
    batch: &Batch,
    results: Vec<Result<(), Failure>>,
    policy: &RetryPolicy,
    on_dead: OnDead,
    chance: f64,
) -> Decision {
    let mut decision = Decision::default();
    let mut results = results.into_iter();
    let all_confirmed = results.len() == batch.slots.len() && results.as_slice().iter().all(Result::is_ok);
    if all_confirmed {
        decision.settled = batch.slots.iter().map(|slot| slot.position).collect();
        return decision;
    }
    let confirmed = results.as_slice().iter().zip(&batch.envelopes).filter(|(result, _)| result.is_ok());
    let alive = confirmed.map(|(_, envelope)| envelope.destination.as_str()).collect();
    let mut lanes = Lanes { halted: HashMap::new(), alive, policy, on_dead, chance };
    for (slot, envelope) in batch.slots.iter().zip(&batch.envelopes) {
        let result = results.next().unwrap_or_else(|| Err(Failure::unknown("the transport gave no answer")));
        let lane = LaneKey::of(envelope);
        match lane.as_ref().and_then(|lane| lanes.halted.get(lane)) {
            Some(Halt::Unsettled) => decision.unsettled.push(slot.position),
            Some(Halt::Parked) => decision.park.push(Park {
                position: slot.position,
                shard: slot.shard,
                lane,
                parking: Parking::Behind,
                attempts: slot.attempts,
                reason: None,
            }),
            None => decision.take(*slot, envelope, result, &mut lanes),
        }
    }
    decision
}

impl Decision {
    fn take(&mut self, slot: Slot, envelope: &Envelope, result: Result<(), Failure>, lanes: &mut Lanes<'_>) {
        let lane = LaneKey::of(envelope);
        let failure = match result {
            Ok(()) => {
                self.settled.push(slot.position);
                return;
            }
            Err(failure) => failure,
        };
        let is_spent = failure.class == Class::Message;
        // One destination of several is out of order: what goes there steps
        // aside, unblamed, so that the others flow.
        let steps_aside = failure.class == Class::Destination
            && !lanes.alive.is_empty()
            && !lanes.alive.contains(envelope.destination.as_str());
        if !is_spent && !steps_aside {
            self.unsettled.push(slot.position);
            match failure.class {
                Class::Pending => self.pending = true,
                _ => drop(self.outage.get_or_insert(failure.reason)),
            }
            lanes.halted.extend(lane.map(|lane| (lane, Halt::Unsettled)));
            return;
        }
        let attempts = slot.attempts.saturating_add(u32::from(is_spent));
        let exhausted = lanes.policy.max_attempts.is_some_and(|limit| attempts >= limit);
        if is_spent && (exhausted || failure.permanent) {
            self.park.push(dead(slot, lane.clone(), attempts, failure.reason));
            if lanes.on_dead == OnDead::SkipKey {
                return;
            }
        } else {
            self.park.push(Park {
                position: slot.position,
                shard: slot.shard,
                lane: lane.clone(),
                parking: Parking::Waiting {
                    after: lanes.policy.backoff.delay(attempts.max(1), lanes.chance),
                },
                attempts,
                reason: Some(failure.reason),
            });
        }
        if let Some(lane) = lane {
            self.blocked.push(lane.clone());
            lanes.halted.insert(lane, Halt::Parked);
        }
    }
}

impl Decision {
    /// For rows that were parked already: those that could not be sent stay
    /// parked, unblamed, and are tried again later. Whether their destination
    /// is out of order says nothing about the log.
    pub fn stay_parked(&mut self, batch: &Batch, policy: &RetryPolicy, chance: f64) {
        let unsettled: HashSet<Position> = self.unsettled.drain(..).collect();
        let reason = self.outage.take();
        let mut heads = HashSet::new();
        for (slot, envelope) in batch.slots.iter().zip(&batch.envelopes) {
            if !unsettled.contains(&slot.position) {
                continue;
            }
            let lane = LaneKey::of(envelope);
            let is_head = lane.as_ref().is_none_or(|lane| heads.insert(lane.clone()));
            let after = policy.backoff.delay(slot.attempts.max(1), chance);
            self.park.push(Park {
                position: slot.position,
                shard: slot.shard,
                lane,
                parking: if is_head { Parking::Waiting { after } } else { Parking::Behind },
                attempts: slot.attempts,
                reason: reason.clone().filter(|_| is_head),
            });
        }
    }
}

fn dead(slot: Slot, lane: Option<LaneKey>, attempts: u32, reason: String) -> Park {
    Park {
        position: slot.position,
        shard: slot.shard,
        lane,
        parking: Parking::Dead,
        attempts,
        reason: Some(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(keys: &[Option<&str>]) -> Batch {
        let mut batch = Batch::default();
        for (position, key) in (1..).zip(keys) {
            let envelope = Envelope { key: key.map(Into::into), ..Envelope::default() };
            batch.push(Slot { position, shard: 0, attempts: 0 }, envelope);
        }
        batch
    }

    fn run(batch: &Batch, results: Vec<Result<(), Failure>>) -> Decision {
        decide(batch, results, &RetryPolicy::default(), OnDead::BlockKey, 0.5)
    }

    #[test]
    fn a_refused_head_parks_its_key_and_nothing_else() {
        let batch = batch(&[Some("a"), Some("b"), Some("a"), None]);

        let decision = run(&batch, vec![Err(Failure::message("too large")), Ok(()), Ok(()), Ok(())]);

        assert_eq!(decision.settled, [2, 4]);
        let parked: Vec<_> = decision.park.iter().map(|p| (p.position, p.parking.name())).collect();
        assert_eq!(parked, [(1, "waiting"), (3, "behind")]);
        assert_eq!(decision.outage, None);
    }

    #[test]
    fn a_confirm_behind_an_unconfirmed_message_of_its_key_does_not_settle() {
        let batch = batch(&[Some("a"), Some("a"), Some("b")]);

        let decision = run(&batch, vec![Err(Failure::unknown("timeout")), Ok(()), Ok(())]);

        assert_eq!(decision.settled, [3]);
        assert_eq!(decision.unsettled, [1, 2]);
        assert!(decision.park.is_empty());
    }

    #[test]
    fn an_outage_parks_nothing() {
        let batch = batch(&[None, Some("a"), None]);

        let decision =
            run(&batch, vec![Err(Failure::destination("down")), Err(Failure::destination("down")), Ok(())]);

        assert!(decision.park.is_empty());
        assert_eq!(decision.unsettled, [1, 2]);
        assert_eq!(decision.outage.as_deref(), Some("down"));
    }

    #[test]
    fn a_slow_confirm_settles_nothing_and_is_no_outage() {
        let batch = batch(&[Some("a"), Some("a"), None]);

        let decision = run(&batch, vec![Err(Failure::pending("slow")), Ok(()), Ok(())]);

        assert_eq!((decision.settled, decision.unsettled), (vec![3], vec![1, 2]));
        assert!(decision.pending && decision.outage.is_none());
    }

    #[test]
    fn one_destination_out_of_order_steps_aside_and_the_others_flow() {
        let mut batch = batch(&[Some("a"), Some("b"), Some("a")]);
        batch.envelopes[0].destination = "down".into();

        let decision = run(&batch, vec![Err(Failure::destination("full")), Ok(()), Ok(())]);

        assert_eq!(decision.settled, [2]);
        let parked: Vec<_> =
            decision.park.iter().map(|p| (p.position, p.parking.name(), p.attempts)).collect();
        assert_eq!(parked, [(1, "waiting", 0), (3, "behind", 0)]);
        assert_eq!((decision.outage, decision.unsettled), (None, vec![]));
    }

    #[test]
    fn parked_rows_whose_destination_is_down_stay_parked_unblamed() {
        let batch = batch(&[Some("a"), Some("a"), None]);
        let down = || Err(Failure::destination("down"));

        let mut decision = run(&batch, vec![down(), down(), down()]);
        decision.stay_parked(&batch, &RetryPolicy::default(), 0.5);

        let parked: Vec<_> =
            decision.park.iter().map(|p| (p.position, p.parking.name(), p.attempts)).collect();
        assert_eq!(parked, [(1, "waiting", 0), (2, "behind", 0), (3, "waiting", 0)]);
        assert!(decision.unsettled.is_empty() && decision.outage.is_none());
    }

    #[test]
    fn a_transport_that_answers_short_confirms_nothing_more() {
        let decision = run(&batch(&[None, None]), vec![Ok(())]);

        assert_eq!(decision.settled, [1]);
        assert_eq!(decision.unsettled, [2]);
    }

    #[test]
    fn a_permanent_refusal_is_dead_at_once_and_skip_lets_the_key_go_on() {
        let batch = batch(&[Some("a"), Some("a")]);
        let results = || vec![Err(Failure::message("bad subject").permanently()), Ok(())];

        let blocked = run(&batch, results());
        let skipped = decide(&batch, results(), &RetryPolicy::default(), OnDead::SkipKey, 0.5);

        assert_eq!(blocked.park.iter().map(|p| p.parking.name()).collect::<Vec<_>>(), ["dead", "behind"]);
        assert!(blocked.settled.is_empty());
        assert_eq!(skipped.settled, [2]);
    }

    #[test]
    fn rows_of_a_blocked_lane_wait_behind_it() {
        let lane = LaneKey { tenant: String::new(), key: "a".into() };
        let row = |position, key: &str| Row {
            position,
            shard: 0,
            envelope: Ok(Envelope { key: Some(key.into()), ..Envelope::default() }),
        };

        let batch = Batch::of_rows(vec![row(1, "a"), row(2, "b")], &Blocked::new(vec![lane]));

        assert_eq!(batch.slots.len(), 1);
        assert_eq!(batch.park.first().map(|p| p.position), Some(1));
    }
}
