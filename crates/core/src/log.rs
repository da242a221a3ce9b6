//! The outbox as a log: positions, shards, cursors, and the rows beside it.
//!
//! A row enters the log once and is never changed. Progress is a cursor per
//! (sink, shard): everything at or below its position is settled, except the
//! *holes* it lists. A hole is a position that was passed but not settled,
//! because its row was not visible yet (a transaction still open) or because
//! its confirm did not arrive. Messages the broker refused are *parked* beside
//! the log together with the later messages of their key.

use std::time::Duration;

use crate::envelope::Envelope;
use crate::timestamp::Timestamp;

/// A place in the log. Rows of one key have growing positions.
pub type Position = i64;
/// A part of the log that one relay owns at a time.
pub type Shard = i16;
/// The number of shards; also the most relays that can share one sink.
pub const SHARDS: Shard = 8;
/// More blocked lanes than this are not listed; every lane then counts as blocked.
pub const MAX_BLOCKED: usize = 100_000;
/// More open holes than this and a reader waits for them instead of going on.
pub const MAX_HOLES: usize = 20_000;
/// The characters of an outage's reason that are kept.
pub const MAX_OUTAGE: usize = 500;

/// How many shards each of `live` relays may hold, so that together they hold all.
#[must_use]
pub fn fair_share(live: i64) -> i64 {
    let (shards, live) = (i64::from(SHARDS), live.max(1));
    (shards - 1) / live + 1
}

/// What a relay asks for when it wants shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The sink whose cursors are wanted.
    pub sink: String,
    /// The relay that asks; unique among all processes.
    pub holder: String,
    /// How long the claim lasts without renewal.
    pub lease: Duration,
    /// Why the destination is unusable, if it is; shown to operators.
    pub outage: Option<String>,
}

impl ClaimRequest {
    /// The outage as every store keeps it: short, on one line, and without
    /// U+0000, which not every database can hold.
    #[must_use]
    pub fn outage_text(&self) -> Option<String> {
        let visible = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        self.outage.as_ref().map(|reason| reason.chars().take(MAX_OUTAGE).map(visible).collect())
    }
}

/// A shard this relay may move, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The shard.
    pub shard: Shard,
    /// Grows with every change of owner; a settle under an older one is refused.
    pub fence: i64,
    /// Everything up to here is settled, except the holes.
    pub position: Position,
    /// Passed but not settled, ascending.
    pub holes: Vec<Position>,
}

/// What to read: rows of `shards` above `after`, and the listed holes.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// The shards of this reader, ascending.
    pub shards: &'a [Shard],
    /// Read above this position.
    pub after: Position,
    /// Also look these up.
    pub holes: &'a [Position],
    /// At most this many rows above `after`. A store may count the rows found
    /// among the holes too, and then leave those above for the next read.
    pub limit: usize,
}

/// A row of the log. Its envelope is an error if the stored columns cannot be
/// understood, which only a row inserted by hand can be.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its place.
    pub position: Position,
    /// Its shard.
    pub shard: Shard,
    /// What it carries.
    pub envelope: Result<Envelope, String>,
}

/// What a read found.
#[derive(Clone, Debug, Default)]
pub struct Span {
    /// The rows, by ascending position.
    pub rows: Vec<Row>,
    /// Everything up to here was looked at.
    pub through: Position,
    /// Positions at or below `through` whose row may still appear, ascending.
    pub holes: Vec<Position>,
    /// Whether more rows were ready than the limit allowed.
    pub full: bool,
}

/// The scope of an order: messages of one tenant with one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneKey {
    /// The tenant, or empty.
    pub tenant: String,
    /// The ordering key.
    pub key: String,
}

impl LaneKey {
    /// The lane of an envelope, if it has a key.
    #[must_use]
    pub fn of(envelope: &Envelope) -> Option<Self> {
        let key = envelope.key.clone()?;
        Some(Self { tenant: envelope.tenant.clone(), key })
    }
}

/// Why and until when a row stands beside the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parking {
    /// It was refused and will be tried again after the delay.
    Waiting {
        /// From the time of the settle.
        after: Duration,
    },
    /// It waits for an earlier message of its key.
    Behind,
    /// It is a dead letter.
    Dead,
}

impl Parking {
    /// The name of the state, as stored.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Waiting { .. } => "waiting",
            Self::Behind => "behind",
            Self::Dead => "dead",
        }
    }
}

/// A row put beside the log, or changed there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Park {
    /// The row.
    pub position: Position,
    /// Its shard.
    pub shard: Shard,
    /// Its lane, if it has a key.
    pub lane: Option<LaneKey>,
    /// What it waits for.
    pub parking: Parking,
    /// Attempts spent so far.
    pub attempts: u32,
    /// The last error.
    pub reason: Option<String>,
}

/// A parked row whose time has come, or that follows one in its lane.
#[derive(Clone, Debug)]
pub struct DueRow {
    /// The row itself.
    pub row: Row,
    /// Attempts spent so far.
    pub attempts: u32,
}

/// What a relay writes back, all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// The sink.
    pub sink: String,
    /// The shards it speaks for, each with the fence it was claimed under.
    pub fences: Vec<(Shard, i64)>,
    /// The new position and holes of those shards, if they moved.
    pub progress: Option<(Position, Vec<Position>)>,
    /// Rows to put beside the log, or to change there.
    pub park: Vec<Park>,
    /// Parked rows that were sent.
    pub unpark: Vec<Position>,
    /// Lanes whose next parked row may now be tried.
    pub free: Vec<LaneKey>,
    /// Whether a dead row stops blocking its lane.
    pub skip_dead: bool,
}

/// A relay's dead letter, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedRow {
    /// The sink that refused it.
    pub sink: String,
    /// The row.
    pub position: Position,
    /// The message's id.
    pub id: String,
    /// The message's name.
    pub kind: String,
    /// `waiting`, `behind` or `dead`.
    pub state: String,
    /// Attempts spent.
    pub attempts: u32,
    /// The last error.
    pub reason: Option<String>,
    /// When it was parked.
    pub since: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fair_shares_cover_all_shards() {
        let shares: Vec<i64> = (0..10).map(fair_share).collect();

        assert_eq!(shares, [8, 8, 4, 3, 2, 2, 2, 2, 1, 1]);
        assert!((1..10).all(|live| live * fair_share(live) >= i64::from(SHARDS)));
        assert_eq!((fair_share(i64::MIN), fair_share(i64::MAX)), (8, 1));
    }
}
