//! Which operation comes next: any that a producer, relay, inbox, janitor or
//! operator could call in the state the oracle is in.

use std::collections::HashSet;
use std::time::Duration;

use oncebox_core::inspect::Inspect;
use oncebox_core::log::{ParkedRow, Parking};
use oncebox_core::store::Purge;
use oncebox_core::{Envelope, Timestamp};
use oncebox_flow::memory::MemoryStore;

use super::operation::{Marking, Operation, Settling};
use super::side::Side;
use crate::dice::Dice;
use crate::sample::{keyed, moment, plain};
use crate::steps::{logged, waiting};

const HOLDERS: [&str; 3] = ["anna", "bert", "cora"];
const KEYS: [&str; 4] = ["a", "b", "c", ""];
const HANDLERS: [&str; 2] = ["h", "g"];
const BODIES: [&str; 2] = ["x", "y"];
const MINUTE: Duration = Duration::from_secs(60);

/// The key of a message, which is part of its id.
pub(super) fn key_of(id: &str) -> Option<&str> {
    let key = id.split('-').next().unwrap_or_default();
    (!key.is_empty()).then_some(key)
}

pub(super) struct Chooser {
    dice: Dice,
    now: Timestamp,
    /// One policy for a whole sequence, as a relay has it.
    skip_dead: bool,
}

impl Chooser {
    pub(super) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let skip_dead = dice.once_in(2);
        Self { dice, now: moment(0), skip_dead }
    }

    pub(super) const fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) async fn next(&mut self, oracle: &Side<MemoryStore>) -> Operation {
        // No two operations at the same time: ties may be broken in any way.
        self.now = self.now.plus(Duration::from_micros(1 + self.dice.roll() % 20_000_000));
        if oracle.has_begun() {
            return self.in_transaction();
        }
        let log = logged(&oracle.store).await;
        let parked = oracle.store.parked(1000).await.unwrap_or_default();
        match self.dice.below(22) {
            0..=5 => Operation::Begin,
            6 => Operation::Holds(self.message()),
            7 => Operation::Promote(1 + self.dice.below(4)),
            8 | 9 => Operation::Claim(self.holder()),
            10 if self.dice.once_in(3) => Operation::Release(self.holder()),
            10..=14 => Operation::Settle(self.settling(&log, &parked)),
            15 => Operation::Due,
            16 => Operation::Blocked(self.dice.once_in(2)),
            17 => self.operate(&parked),
            18 => self.purge(),
            19 => self.read(&log),
            20 => Operation::Parked,
            _ if self.dice.once_in(3) => Operation::Bury(self.message()),
            _ => Operation::Status,
        }
    }

    fn in_transaction(&mut self) -> Operation {
        match self.dice.below(8) {
            0 | 1 => Operation::Commit,
            2 => Operation::Rollback,
            3 => Operation::Mark(self.marking()),
            4 => Operation::Reply(self.marking(), vec![1; self.dice.below(3)]),
            _ => Operation::Put((0..=self.dice.below(4)).map(|_| self.message()).collect()),
        }
    }

    fn holder(&mut self) -> &'static str {
        HOLDERS[self.dice.below(HOLDERS.len())]
    }

    /// From few ids, so that they meet again.
    fn message(&mut self) -> Envelope {
        let key = KEYS[self.dice.below(KEYS.len())];
        let id = format!("{key}-{}", self.dice.below(25));
        let scheduled = self.dice.once_in(5);
        if scheduled {
            // An id is either scheduled or not, and no two are due at once.
            let due = self.now.plus(Duration::from_micros(self.dice.roll() % 60_000_000));
            return Envelope { due: Some(due), ..envelope(format!("{id}-later"), key) };
        }
        envelope(id, key)
    }

    fn marking(&mut self) -> Marking {
        let age = Duration::from_secs(self.dice.roll() % 90);
        Marking {
            handler: HANDLERS[self.dice.below(HANDLERS.len())],
            id: self.dice.below(6).to_string(),
            body: BODIES[usize::from(self.dice.once_in(4))],
            time: (!self.dice.once_in(3)).then(|| self.now.minus(age)),
            window: (!self.dice.once_in(3)).then_some(MINUTE),
        }
    }

    fn some(&mut self, log: &[String]) -> Option<String> {
        self.dice.pick(log).cloned()
    }

    fn few(&mut self, log: &[String]) -> Vec<String> {
        let picked: HashSet<String> =
            (0..self.dice.below(3)).filter_map(|_| self.dice.pick(log).cloned()).collect();
        log.iter().filter(|id| picked.contains(*id)).cloned().collect()
    }

    fn purge(&mut self) -> Operation {
        let limit = 1 + self.dice.below(6);
        match self.dice.below(4) {
            0 => {
                let handler = HANDLERS[self.dice.below(HANDLERS.len())].to_owned();
                Operation::Purge(Purge::Markers { handler, older_than: MINUTE }, limit)
            }
            1 => Operation::Purge(Purge::Relays(MINUTE), 100),
            _ => Operation::Purge(Purge::Outbox(MINUTE), limit),
        }
    }

    /// What an operator does to a dead letter. Where dead ones are skipped, a
    /// lane that has gone on must not get a second head.
    fn operate(&mut self, parked: &[ParkedRow]) -> Operation {
        let Some(row) = self.dice.pick(parked) else { return Operation::Parked };
        let (id, key) = (row.id.clone(), key_of(&row.id));
        let alone = parked.iter().filter(|other| key.is_some() && key_of(&other.id) == key).count() <= 1;
        if self.dice.once_in(2) && (alone || !self.skip_dead) {
            return Operation::Requeue(id);
        }
        Operation::Discard(id)
    }

    fn read(&mut self, log: &[String]) -> Operation {
        let after = self.some(log);
        let holes = self.few(passed(log, after.as_ref()));
        // Above the number of holes: a store may spend its limit on them first.
        Operation::Read { limit: holes.len() + 1 + self.dice.below(9), after, holes }
    }

    fn settling(&mut self, log: &[String], parked: &[ParkedRow]) -> Settling {
        let through = self.some(log);
        let mut settling = Settling {
            holder: self.holder(),
            progress: (!self.dice.once_in(3))
                .then(|| (through.clone(), self.few(passed(log, through.as_ref())))),
            skip_dead: self.skip_dead,
            ..Settling::default()
        };
        if self.dice.once_in(2) {
            self.park(&mut settling, log, parked);
        }
        if self.dice.once_in(3) {
            self.unpark(&mut settling, parked);
        }
        settling
    }

    /// Parks rows as a relay would: the first of a lane waits or is dead, and
    /// later ones are behind it.
    fn park(&mut self, settling: &mut Settling, log: &[String], parked: &[ParkedRow]) {
        let place = |id: &str| log.iter().position(|other| other == id);
        for id in self.few(log) {
            let of_lane = |other: &str| key_of(&id).is_some() && key_of(other) == key_of(&id);
            let is_there = parked.iter().any(|row| row.id == id);
            let is_last = parked.iter().filter(|row| of_lane(&row.id)).all(|row| place(&row.id) < place(&id));
            if is_there || !is_last {
                continue;
            }
            let blocks = |state: &str| !(self.skip_dead && state == "dead");
            let is_blocked = parked.iter().any(|row| of_lane(&row.id) && blocks(&row.state))
                || settling.park.iter().any(|(other, parking, _)| of_lane(other) && blocks(parking.name()));
            let parking = match self.dice.below(3) {
                _ if is_blocked => Parking::Behind,
                0 => Parking::Dead,
                _ => waiting(self.dice.roll() % 40),
            };
            settling.park.push((id, parking, u32::from(!is_blocked)));
        }
    }

    /// A waiting row was tried: it is gone, refused once more, or dead.
    fn unpark(&mut self, settling: &mut Settling, parked: &[ParkedRow]) {
        let tried: Vec<&ParkedRow> = parked.iter().filter(|row| row.state == "waiting").collect();
        let Some(row) = self.dice.pick(&tried) else { return };
        match self.dice.below(4) {
            0 => settling.park.push((row.id.clone(), Parking::Dead, row.attempts + 1)),
            1 => settling.park.push((row.id.clone(), waiting(self.dice.roll() % 40), row.attempts + 1)),
            _ => settling.unpark.push(row.id.clone()),
        }
        settling.free.extend(key_of(&row.id).map(str::to_owned));
    }
}

fn envelope(id: String, key: &str) -> Envelope {
    if key.is_empty() { plain(id) } else { keyed(id, key) }
}

/// The rows up to one: where holes can be.
fn passed<'l>(log: &'l [String], through: Option<&String>) -> &'l [String] {
    let end = through.and_then(|id| log.iter().position(|other| other == id));
    end.map_or(&[], |end| &log[..=end])
}
