//! Which operation comes next: any that a consumer, worker, operator or
//! janitor could call, with tickets that are good and tickets that are not.

use std::time::Duration;

use oncebox_core::store::Purge;
use oncebox_core::{Envelope, Timestamp};
use oncebox_flow::memory::MemoryStore;

use super::operation::{Arrival, Claim, Ending, Name, Operation};
use super::side::Side;
use crate::dice::Dice;
use crate::sample::{moment, plain};

pub(super) const HANDLERS: [&str; 2] = ["h", "g"];
const HOLDERS: [&str; 3] = ["anna", "bert", "cora"];
const CHANNELS: [&str; 2] = ["c", "d"];
const LANES: [Option<&str>; 3] = [None, Some("k"), Some("l")];
const EFFECTS: [&str; 2] = ["charge", "mail"];
const MINUTE: Duration = Duration::from_secs(60);

pub(super) struct Chooser {
    dice: Dice,
    now: Timestamp,
    /// Edited messages have ids of their own.
    edited: usize,
}

impl Chooser {
    pub(super) fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed), now: moment(0), edited: 0 }
    }

    pub(super) const fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) fn next(&mut self, oracle: &Side<MemoryStore>) -> Operation {
        // No two operations at the same time: ties may be broken in any way.
        self.now = self.now.plus(Duration::from_micros(1 + self.dice.roll() % 12_000_000));
        match self.dice.below(40) {
            0..=6 => self.deposit(),
            7..=14 => self.take(),
            15 => Operation::HasSuspects,
            16 => Operation::Start(self.claims(oracle)),
            17 => Operation::Renew(self.claims(oracle)),
            18..=23 => Operation::Finish {
                claim: self.claim(oracle),
                next: self.maybe(oracle),
                is_committed: !self.dice.once_in(5),
            },
            24..=28 => {
                let ending = self.ending();
                Operation::Conclude { claim: self.claim(oracle), ending, next: self.maybe(oracle) }
            }
            29 => Operation::Standing(self.claim(oracle)),
            30 => self.effect(oracle),
            31 => Operation::Announce(HANDLERS[self.dice.below(2)]),
            32 => Operation::ParkOrphans,
            33 | 34 => self.operate(oracle),
            35 => self.sweep(),
            36 => Operation::Letters,
            37 => self.backfill(oracle),
            38 => Operation::GiveBack(self.claims(oracle)),
            _ => Operation::Status,
        }
    }

    fn deposit(&mut self) -> Operation {
        let batch = (0..=self.dice.below(4)).map(|_| self.arrival()).collect();
        Operation::Deposit { batch, is_committed: !self.dice.once_in(6) }
    }

    /// From few ids, so that they meet again; the lane is part of the id.
    fn arrival(&mut self) -> Arrival {
        let number = self.dice.below(30);
        let mut envelope = plain(number.to_string());
        if self.dice.once_in(8) {
            envelope.payload = b"another body".to_vec();
        }
        if self.dice.once_in(3) {
            envelope.time = Some(self.now.minus(Duration::from_secs(self.dice.roll() % 90)));
        }
        Arrival {
            channel: CHANNELS[usize::from(self.dice.once_in(5))],
            envelope,
            handlers: HANDLERS[..=self.dice.below(2)].to_vec(),
            lane: LANES[number % LANES.len()],
            window: self.dice.once_in(2).then_some(MINUTE),
            is_refused: self.dice.once_in(12),
            frees_lane: self.dice.once_in(2),
        }
    }

    fn take(&mut self) -> Operation {
        Operation::Take {
            holder: HOLDERS[self.dice.below(HOLDERS.len())],
            limits: (1 + self.dice.below(6), 1 + self.dice.below(4)),
            seats: self.dice.below(4),
            suspects: self.dice.once_in(3),
        }
    }

    fn ending(&mut self) -> Ending {
        let spent = !self.dice.once_in(4);
        match self.dice.below(6) {
            0 | 1 => Ending::Dead { spent, frees_lane: self.dice.once_in(2) },
            2 => Ending::Duplicate,
            _ => Ending::Retry { after: Duration::from_micros(self.dice.roll() % 20_000_000), spent },
        }
    }

    fn effect(&mut self, oracle: &Side<MemoryStore>) -> Operation {
        let name = EFFECTS[self.dice.below(EFFECTS.len())];
        match self.dice.below(2) {
            0 => Operation::Intend(self.claim(oracle), name),
            _ => Operation::Record(self.claim(oracle), name, vec![7; self.dice.below(3)]),
        }
    }

    fn operate(&mut self, oracle: &Side<MemoryStore>) -> Operation {
        let name = self.name(oracle);
        match self.dice.below(5) {
            0 => Operation::Discard(name),
            1 => {
                self.edited += 1;
                let edited =
                    Envelope { causation_id: Some(name.1.clone()), ..plain(format!("e{}", self.edited)) };
                Operation::Amend(name, Box::new(edited))
            }
            2 => Operation::Replay(name),
            _ => Operation::Requeue(name, self.dice.once_in(3).then_some(MINUTE)),
        }
    }

    fn sweep(&mut self) -> Operation {
        let handler = HANDLERS[self.dice.below(HANDLERS.len())].to_owned();
        match self.dice.below(5) {
            0 => Operation::Purge(Purge::Markers { handler, older_than: MINUTE }, 100),
            1 => Operation::Purge(Purge::Messages(MINUTE), 100),
            2 => Operation::HoldBroom(HOLDERS[self.dice.below(HOLDERS.len())]),
            _ => {
                let purge = Purge::Deliveries { scope: String::new(), handler, older_than: MINUTE };
                Operation::Purge(purge, 1 + self.dice.below(4))
            }
        }
    }

    fn backfill(&mut self, oracle: &Side<MemoryStore>) -> Operation {
        match self.dice.below(2) {
            0 => Operation::Stored { skip: self.dice.below(5), limit: 1 + self.dice.below(20) },
            _ => Operation::Assign(self.name(oracle)),
        }
    }

    /// One that was taken at some time, or that never was.
    fn name(&mut self, oracle: &Side<MemoryStore>) -> Name {
        let known: Vec<&Name> = oracle.names().collect();
        match self.dice.pick(&known) {
            Some(name) if !self.dice.once_in(6) => (*name).clone(),
            _ => (HANDLERS[self.dice.below(HANDLERS.len())], self.dice.below(30).to_string()),
        }
    }

    fn claim(&mut self, oracle: &Side<MemoryStore>) -> Claim {
        let name = match self.dice.pick(oracle.leased()) {
            Some(name) if !self.dice.once_in(8) => name.clone(),
            _ => self.name(oracle),
        };
        Claim { name, ago: usize::from(self.dice.once_in(8)) }
    }

    fn maybe(&mut self, oracle: &Side<MemoryStore>) -> Option<Claim> {
        self.dice.once_in(3).then(|| self.claim(oracle))
    }

    fn claims(&mut self, oracle: &Side<MemoryStore>) -> Vec<Claim> {
        (0..=self.dice.below(3)).map(|_| self.claim(oracle)).collect()
    }
}
