//! One of the two stores, and what it takes to tell its positions as ids.

use std::collections::HashMap;
use std::fmt::Debug;

use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::Inspect;
use oncebox_core::log::{Cursor, Park, Position, Settlement, Window};
use oncebox_core::store::{Burial, Mark};
use oncebox_core::{Dedup, Digest, Mailbox, Result, Retention, Timestamp};

use super::operation::{Marking, Operation, Settling};
use crate::sample::{ALL_SHARDS, SOURCE};
use crate::steps::{SINK, fences, lane, log, request};

/// More than a sequence can park.
const MANY: usize = 1000;

pub(super) struct Side<S: Mailbox> {
    pub(super) store: S,
    begun: Option<S::Begun>,
    /// What each holder last claimed, current or not.
    claims: HashMap<&'static str, Vec<Cursor>>,
    positions: HashMap<String, Position>,
    shards: HashMap<String, i16>,
    /// Kept when rows are purged: cursors still point there.
    ids: HashMap<Position, String>,
}

impl<S: Mailbox + Dedup + Retention + Inspect> Side<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            begun: None,
            claims: HashMap::new(),
            positions: HashMap::new(),
            shards: HashMap::new(),
            ids: HashMap::new(),
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Does it and tells everything that can be seen of it, as text.
    pub(super) async fn apply(&mut self, operation: &Operation, now: Timestamp) -> String {
        let now = Some(now);
        let seen = match operation {
            Operation::Begin => {
                let begun = self.store.begin().await;
                tell(begun.map(|begun| self.begun = Some(begun)))
            }
            Operation::Commit => match self.begun.take() {
                Some(begun) => tell(self.store.commit(begun).await),
                None => String::new(),
            },
            Operation::Rollback => match self.begun.take() {
                Some(begun) => tell(self.store.rollback(begun).await),
                None => String::new(),
            },
            Operation::Put(batch) => match &mut self.begun {
                Some(tx) => tell(self.store.put(tx, batch, now).await),
                None => String::new(),
            },
            Operation::Mark(marking) => self.mark(marking, now).await,
            Operation::Reply(marking, reply) => self.reply(marking, reply).await,
            Operation::Holds(envelope) => tell(self.store.holds(envelope).await),
            Operation::Promote(limit) => tell(self.store.promote(*limit, now).await),
            Operation::Bury(envelope) => self.bury(envelope, now).await,
            Operation::Purge(purge, limit) => tell(self.store.purge(purge, *limit, now).await),
            Operation::Requeue(id) => tell(self.store.requeue(SINK, self.position(id), now).await),
            Operation::Discard(id) => tell(self.store.discard(SINK, self.position(id), now).await),
            looking => self.relay(looking, now).await,
        };
        if matches!(operation, Operation::Commit | Operation::Promote(_)) {
            self.refresh().await;
        }
        seen
    }

    async fn relay(&mut self, operation: &Operation, now: Option<Timestamp>) -> String {
        match operation {
            Operation::Claim(holder) => self.claim(holder, now).await,
            Operation::Release(holder) => tell(self.store.release(SINK, holder).await),
            Operation::Read { after, holes, limit } => self.read(after.as_ref(), holes, *limit).await,
            Operation::Settle(settling) => {
                let settlement = self.settlement(settling);
                tell(self.store.settle(&settlement, now).await)
            }
            Operation::Due => self.due(now).await,
            Operation::Blocked(skip_dead) => {
                let mut lanes = self.store.blocked(SINK, &ALL_SHARDS, *skip_dead).await.unwrap();
                lanes.sort();
                format!("{lanes:?}")
            }
            Operation::Parked => self.parked().await,
            _ => self.status().await,
        }
    }

    async fn mark(&mut self, marking: &Marking, now: Option<Timestamp>) -> String {
        let Some(tx) = &mut self.begun else { return String::new() };
        let key = MessageKey { source: SOURCE.into(), id: marking.id.clone() };
        tell(self.store.mark(tx, &mark(marking, &key), now).await)
    }

    async fn reply(&mut self, marking: &Marking, reply: &[u8]) -> String {
        let Some(tx) = &mut self.begun else { return String::new() };
        let key = MessageKey { source: SOURCE.into(), id: marking.id.clone() };
        tell(self.store.reply(tx, &mark(marking, &key), reply).await)
    }

    async fn bury(&mut self, envelope: &oncebox_core::Envelope, now: Option<Timestamp>) -> String {
        let burial = Burial { channel: "c", handler: "h", code: "bad", reason: "bad", attempts: 1, envelope };
        tell(self.store.bury(&burial, now).await)
    }

    async fn claim(&mut self, holder: &'static str, now: Option<Timestamp>) -> String {
        let cursors = self.store.claim(&request(holder), now).await.unwrap();
        let told: Vec<_> = cursors
            .iter()
            .map(|cursor| (cursor.shard, cursor.fence, self.id(cursor.position), self.ids(&cursor.holes)))
            .collect();
        let told = format!("{told:?}");
        self.claims.insert(holder, cursors);
        told
    }

    async fn read(&mut self, after: Option<&String>, holes: &[String], limit: usize) -> String {
        let after = after.map_or(0, |id| self.position(id));
        let holes: Vec<Position> = holes.iter().map(|id| self.position(id)).collect();
        let span =
            self.store.read(Window { shards: &ALL_SHARDS, after, holes: &holes, limit }).await.unwrap();
        let rows: Vec<_> = span
            .rows
            .iter()
            .map(|row| row.envelope.as_ref().map(|e| (e.id.clone(), e.key.clone(), e.time, e.payload.len())))
            .collect();
        format!("{rows:?} full={}", span.full)
    }

    fn settlement(&self, settling: &Settling) -> Settlement {
        let park = |(id, parking, attempts): &(String, oncebox_core::log::Parking, u32)| Park {
            position: self.position(id),
            shard: self.shards.get(id).copied().unwrap_or_default(),
            lane: super::choice::key_of(id).map(lane),
            parking: parking.clone(),
            attempts: *attempts,
            reason: Some(format!("refused {attempts}")),
        };
        let progress = settling.progress.as_ref().map(|(through, holes)| {
            let mut holes: Vec<Position> = holes.iter().map(|id| self.position(id)).collect();
            holes.sort_unstable();
            (through.as_ref().map_or(0, |id| self.position(id)), holes)
        });
        Settlement {
            sink: SINK.into(),
            fences: self.claims.get(settling.holder).map(|cursors| fences(cursors)).unwrap_or_default(),
            progress,
            park: settling.park.iter().map(park).collect(),
            unpark: settling.unpark.iter().map(|id| self.position(id)).collect(),
            free: settling.free.iter().map(|key| lane(key)).collect(),
            skip_dead: settling.skip_dead,
        }
    }

    async fn due(&mut self, now: Option<Timestamp>) -> String {
        let due = self.store.due(SINK, &ALL_SHARDS, MANY, now).await.unwrap();
        let told: Vec<_> = due.iter().map(|due| (self.id(due.row.position), due.attempts)).collect();
        format!("{told:?}")
    }

    async fn parked(&mut self) -> String {
        let parked = self.store.parked(MANY).await.unwrap();
        let told: Vec<_> =
            parked.iter().map(|row| (&row.id, &row.state, row.attempts, &row.reason, row.since)).collect();
        format!("{told:?}")
    }

    /// What depends neither on this machine's clock nor on which shard a row is in. Pending rows do: where
    /// shards stand apart, another store's hash leaves another number of them behind.
    async fn status(&mut self) -> String {
        let status = self.store.status().await.unwrap();
        let sinks: Vec<_> = status
            .sinks
            .iter()
            .map(|sink| (&sink.sink, sink.waiting, sink.behind, sink.dead, sink.moved_at))
            .collect();
        let totals = (status.logged, status.scheduled, status.markers, status.dead_letters);
        format!("{totals:?} {sinks:?}")
    }

    async fn refresh(&mut self) {
        for row in log(&self.store).await {
            let id = row.envelope.unwrap().id;
            self.ids.insert(row.position, id.clone());
            self.shards.insert(id.clone(), row.shard);
            self.positions.insert(id, row.position);
        }
    }

    fn position(&self, id: &str) -> Position {
        self.positions.get(id).copied().unwrap_or(Position::MAX)
    }

    fn id(&self, position: Position) -> Option<&String> {
        self.ids.get(&position)
    }

    fn ids(&self, positions: &[Position]) -> Vec<Option<&String>> {
        positions.iter().map(|position| self.id(*position)).collect()
    }

    /// Leaves no transaction open.
    pub(super) async fn end(&mut self) {
        self.apply(&Operation::Rollback, Timestamp::default()).await;
    }
}

fn mark<'a>(marking: &'a Marking, key: &'a MessageKey) -> Mark<'a> {
    Mark {
        tenant: "",
        handler: marking.handler,
        key,
        digest: Digest::of(marking.body.as_bytes()),
        time: marking.time,
        window: marking.window,
    }
}

/// A result as text: its value, or the kind of its error.
fn tell<T: Debug>(result: Result<T>) -> String {
    result.map_or_else(|error| error.kind().name().to_owned(), |value| format!("{value:?}"))
}
