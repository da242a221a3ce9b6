//! The relay's decisions: which rows may be sent, and what may be settled.
//!
//! Pure, because everything the relay promises about order and loss is decided
//! here: a message is settled only if it was confirmed *and* every earlier
//! message of its lane was; a refused message parks its lane and nothing else;
//! an outage parks nothing and spends nothing.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::envelope::Envelope;
use crate::log::{LaneKey, MAX_BLOCKED, Park, Parking, Position, Row, Shard};
use crate::transport::{Class, Failure};
use crate::verdict::RetryPolicy;

/// A destination that wants to be left alone for longer than this is not obeyed.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// The whole log waits for a destination that wants to be left alone this
/// long; what goes to one that wants longer steps aside.
pub const PATIENCE: Duration = Duration::from_secs(5);

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
    /// Where messages go that do not go to their own destination.
    redirected: HashMap<Position, Option<String>>,
    /// Whether something that stands behind this batch was confirmed.
    is_overtaken: bool,
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

    /// Notes where the publisher sends each message, if not to its own
    /// destination. Only [`decide`] wants to know, and only of a batch that
    /// was not confirmed as a whole.
    pub fn redirect(&mut self, to: impl Fn(&Envelope) -> Option<String>) {
        for (slot, envelope) in self.slots.iter().zip(&self.envelopes) {
            let destination = to(envelope);
            if destination.as_deref() != Some(envelope.destination.as_str()) {
                self.redirected.insert(slot.position, destination);
            }
        }
    }

    /// Notes that a message behind this batch was confirmed: what cannot be
    /// sent now is not the fault of all destinations, and steps aside.
    pub const fn overtaken(&mut self) {
        self.is_overtaken = true;
    }

    /// Where the message at `slot` goes, if anywhere.
    fn destination<'b>(&'b self, slot: &Slot, envelope: &'b Envelope) -> Option<&'b str> {
        self.redirected.get(&slot.position).map_or(Some(&envelope.destination), Option::as_deref)
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

    /// The lanes it knows by name.
    pub fn lanes(&self) -> impl Iterator<Item = &LaneKey> {
        self.lanes.iter()
    }

    /// Whether `envelope` has to wait behind a parked row.
    #[must_use]
    pub fn holds_back(&self, envelope: &Envelope) -> bool {
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
    /// How long it wants to be left alone, if it said so.
    pub retry_after: Option<Duration>,
    /// The same for each unsettled message whose destination said so.
    wishes: HashMap<Position, Duration>,
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
    batch: &'p Batch,
    halted: HashMap<LaneKey, Halt>,
    /// Destinations that confirmed something, and the last position they did.
    alive: HashMap<&'p str, Position>,
    policy: &'p RetryPolicy,
    on_dead: OnDead,
    chance: f64,
}

impl Lanes<'_> {
    /// One destination of several is out of order, or will be for a while, or
    /// took a later message and not this one: what it does not take steps
    /// aside, unblamed, so that the others flow.
    fn steps_aside(&self, slot: &Slot, envelope: &Envelope, failure: &Failure) -> bool {
        let destination = self.batch.destination(slot, envelope).unwrap_or_default();
        let others_live = match self.alive.get(destination) {
            Some(last) => slot.position < *last,
            None => !self.alive.is_empty(),
        };
        let takes_long = failure.retry_after.is_some_and(|wish| wish > PATIENCE);
        failure.class == Class::Destination && (others_live || takes_long || self.batch.is_overtaken)
    }
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
    let sent = batch.slots.iter().zip(&batch.envelopes);
    let confirmed = results.as_slice().iter().zip(sent).filter(|(result, _)| result.is_ok());
    // The last of each destination remains.
    let alive = confirmed
        .filter_map(|(_, (slot, envelope))| Some((batch.destination(slot, envelope)?, slot.position)))
        .collect();
    let mut lanes = Lanes { batch, halted: HashMap::new(), alive, policy, on_dead, chance };
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
        let wish = failure.retry_after.map(|wish| wish.min(MAX_RETRY_AFTER));
        if !is_spent && !lanes.steps_aside(&slot, envelope, &failure) {
            self.unsettled.push(slot.position);
            self.wishes.extend(wish.map(|wish| (slot.position, wish)));
            match failure.class {
                Class::Pending => self.pending = true,
                _ => {
                    self.retry_after = self.retry_after.max(wish);
                    self.outage.get_or_insert(failure.reason);
                }
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
            let backoff = lanes.policy.backoff.delay(attempts.max(1), lanes.chance);
            self.park.push(Park {
                position: slot.position,
                shard: slot.shard,
                lane: lane.clone(),
                parking: Parking::Waiting { after: backoff.max(wish.unwrap_or_default()) },
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
        self.retry_after = None;
        let wishes = std::mem::take(&mut self.wishes);
        let mut heads = HashSet::new();
        for (slot, envelope) in batch.slots.iter().zip(&batch.envelopes) {
            if !unsettled.contains(&slot.position) {
                continue;
            }
            let lane = LaneKey::of(envelope);
            let is_head = lane.as_ref().is_none_or(|lane| heads.insert(lane.clone()));
            let wish = wishes.get(&slot.position).copied().unwrap_or_default();
            let after = policy.backoff.delay(slot.attempts.max(1), chance).max(wish);
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
mod tests;
