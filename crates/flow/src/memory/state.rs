//! What is committed, and the log in it.
//!
//! Positions are given out at commit, under the writer's lock: they follow
//! commit order and have no gaps, so a rollback has nothing to take back.

use std::collections::{BTreeMap, HashMap, HashSet};

use oncebox_core::log::{Position, SHARDS, Shard};
use oncebox_core::{Envelope, Once, Timestamp};

use super::dedup::{Graveyard, MarkerKey, Markers};
use super::delivery::HandlerId;
use super::parking::ParkingLot;
use super::shelf::Shelf;
use super::stock::Stock;
use super::store::Tables;

/// Everything the store knows.
#[derive(Default)]
pub(super) struct State {
    pub(super) log: Log,
    pub(super) sinks: BTreeMap<String, Sink>,
    pub(super) markers: Markers,
    /// Handlers' runs that have not ended, and when the last one began.
    pub(super) entries: HashMap<MarkerKey, (u32, Timestamp)>,
    pub(super) graveyard: Graveyard,
    pub(super) stock: Stock,
    pub(super) receipts: Shelf,
    /// Handlers of the durable inbox that somebody could run, and when that was last so.
    pub(super) announced: HashMap<HandlerId, Timestamp>,
    /// Who may sweep, and until when.
    pub(super) broom: Option<(String, Timestamp)>,
    pub(super) tables: Tables,
}

/// One sink's progress, its relays, and what it refused.
#[derive(Default)]
pub(super) struct Sink {
    pub(super) cursors: BTreeMap<Shard, Place>,
    pub(super) members: BTreeMap<String, Member>,
    pub(super) parked: ParkingLot,
}

/// A relay that has announced itself.
pub(super) struct Member {
    /// When it will be taken for gone.
    pub(super) seen_until: Timestamp,
    /// Why its destination is unusable, if it is.
    pub(super) outage: Option<String>,
}

/// Where a sink stands in one shard, and who may move it.
#[derive(Default)]
pub(super) struct Place {
    pub(super) position: Position,
    pub(super) holes: Vec<Position>,
    pub(super) holder: Option<String>,
    pub(super) fence: i64,
    pub(super) lease_until: Option<Timestamp>,
    pub(super) moved_at: Option<Timestamp>,
}

/// What makes a message the same message.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Identity {
    tenant: String,
    source: String,
    id: String,
}

impl Identity {
    pub(super) fn of(envelope: &Envelope) -> Self {
        Self { tenant: envelope.tenant.clone(), source: envelope.source.clone(), id: envelope.id.clone() }
    }
}

/// A row of the log.
pub(super) struct Logged {
    pub(super) shard: Shard,
    pub(super) envelope: Envelope,
    /// When it entered the log; the envelope's `time` says the same.
    pub(super) created_at: Timestamp,
}

/// The log and the schedule beside it.
#[derive(Default)]
pub(super) struct Log {
    rows: BTreeMap<Position, Logged>,
    /// Kept when rows are purged: a position is never given out twice.
    last: Position,
    /// Of the log and of the schedule: an id is taken by either.
    identities: HashSet<Identity>,
    schedule: BTreeMap<(Timestamp, Identity), Envelope>,
}

impl Log {
    pub(super) fn rows(&self) -> &BTreeMap<Position, Logged> {
        &self.rows
    }

    /// The highest position that has a row.
    pub(super) fn end(&self) -> Option<Position> {
        self.rows.last_key_value().map(|(position, _)| *position)
    }

    pub(super) fn scheduled(&self) -> usize {
        self.schedule.len()
    }

    /// Whether the schedule has something for the log.
    pub(super) fn has_due(&self, now: Timestamp) -> bool {
        self.schedule.first_key_value().is_some_and(|((due, _), _)| *due <= now)
    }

    /// Whether this message is in the log or waits to enter it.
    pub(super) fn holds(&self, envelope: &Envelope) -> bool {
        self.identities.contains(&Identity::of(envelope))
    }

    /// Takes over what a transaction has put.
    pub(super) fn take(&mut self, puts: Puts) {
        self.identities.extend(puts.identities);
        for (envelope, created_at) in puts.logged {
            self.append(envelope, created_at);
        }
        for (envelope, due) in puts.scheduled {
            self.schedule.insert((due, Identity::of(&envelope)), envelope);
        }
    }

    /// Moves what is due into the log, earliest first; tells how many.
    pub(super) fn promote(&mut self, limit: usize, now: Timestamp) -> usize {
        let mut promoted = 0;
        while promoted < limit {
            let Some(first) = self.schedule.first_entry().filter(|first| first.key().0 <= now) else { break };
            let envelope = first.remove();
            self.append(envelope, now);
            promoted += 1;
        }
        promoted
    }

    /// Forgets a row and its identity.
    pub(super) fn remove(&mut self, position: Position) {
        if let Some(row) = self.rows.remove(&position) {
            self.identities.remove(&Identity::of(&row.envelope));
        }
    }

    fn append(&mut self, mut envelope: Envelope, created_at: Timestamp) {
        self.last += 1;
        envelope.time = Some(created_at);
        // Rows of the log carry no due time: it has passed.
        envelope.due = None;
        let shard = shard(envelope.key.as_deref(), self.last);
        self.rows.insert(self.last, Logged { shard, envelope, created_at });
    }
}

/// What one transaction has put so far.
#[derive(Clone, Default)]
pub(super) struct Puts {
    logged: Vec<(Envelope, Timestamp)>,
    scheduled: Vec<(Envelope, Timestamp)>,
    identities: HashSet<Identity>,
}

impl Puts {
    /// Adds one envelope, unless `log` or this transaction has it.
    pub(super) fn add(&mut self, log: &Log, envelope: &Envelope, now: Timestamp) -> Once {
        let identity = Identity::of(envelope);
        if log.identities.contains(&identity) || !self.identities.insert(identity) {
            return Once::Duplicate;
        }
        match envelope.due {
            Some(due) => self.scheduled.push((envelope.clone(), due)),
            None => self.logged.push((envelope.clone(), now)),
        }
        Once::First
    }
}

/// The shard of a row: by its key, so that a key has one owner, else in turn.
fn shard(key: Option<&str>, position: Position) -> Shard {
    let number = key.map_or(position, |key| {
        // FNV-1a. Its low bits mix poorly on their own.
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        i64::from_ne_bytes((hash ^ (hash >> 32)).to_ne_bytes())
    });
    Shard::try_from(number.rem_euclid(SHARDS.into())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_over_all_shards() {
        let shards: HashSet<Shard> = (0..100).map(|n| shard(Some(&format!("order-{n}")), 1)).collect();

        assert_eq!(shards.len(), 8);
        assert!(shards.iter().all(|shard| (0..SHARDS).contains(shard)));
    }

    #[test]
    fn a_position_is_never_given_out_twice() {
        let mut log = Log::default();
        let envelope = |id: &str| Envelope { id: id.into(), ..Envelope::default() };

        log.append(envelope("a"), Timestamp::default());
        log.remove(1);
        log.append(envelope("a"), Timestamp::default());

        assert_eq!(log.rows().keys().copied().collect::<Vec<_>>(), [2]);
    }
}
