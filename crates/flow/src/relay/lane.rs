//! Shards that stand at the same position and are therefore read together.

use std::time::Duration;

use oncebox_core::Result;
use oncebox_core::log::{Cursor, LaneKey, Park, Parking, Position, Settlement, Shard, Span, Window};
use oncebox_core::plan::{Batch, Decision};
use oncebox_core::store::Mailbox;
use oncebox_core::transport::Publisher;
use tokio::time::Instant;

use super::{Progress, Relay};
use crate::crash::CrashPoint;
use crate::telemetry;

/// How long one lane is driven before others, schedules and retries get their turn.
const SLICE: Duration = Duration::from_secs(1);
/// While there is more to read, progress is written no more often than this.
/// Every write leaves dead rows of the cursors behind, and a snapshot that
/// anybody holds open keeps them in the way of the next write.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);

/// Shards in step with each other. A relay alone has one lane of all shards;
/// shards it takes over from others stand elsewhere and form lanes of their
/// own until they have caught up.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) fences: Vec<(Shard, i64)>,
    pub(super) position: Position,
    holes: Vec<Position>,
}

impl Lane {
    pub(super) fn shards(&self) -> impl Iterator<Item = Shard> + '_ {
        self.fences.iter().map(|(shard, _)| *shard)
    }

    /// The lanes after a claim: shards still held keep what this relay knows
    /// of them, which is at least what the database knows; the others start
    /// from what the database says.
    pub(super) fn regroup(old: Vec<Self>, cursors: Vec<Cursor>) -> Vec<Self> {
        let mut lanes: Vec<Self> = Vec::new();
        for cursor in cursors {
            let fence = (cursor.shard, cursor.fence);
            let known = old.iter().find(|lane| lane.fences.contains(&fence));
            let (position, holes) =
                known.map_or((cursor.position, cursor.holes), |lane| (lane.position, lane.holes.clone()));
            match lanes.iter_mut().find(|lane| lane.position == position && lane.holes == holes) {
                Some(lane) => lane.fences.push(fence),
                None => lanes.push(Self { fences: vec![fence], position, holes }),
            }
        }
        lanes
    }

    fn settlement(&self, sink: &str) -> Settlement {
        Settlement {
            sink: sink.to_owned(),
            fences: self.fences.clone(),
            progress: Some((self.position, self.holes.clone())),
            ..Settlement::default()
        }
    }

    /// Takes over what a span and its decision say. Nothing moves if nothing
    /// was settled or parked: an outage then costs no write.
    fn advance(&mut self, through: Position, holes: Vec<Position>, decision: &Decision) {
        if decision.settled.is_empty() && decision.park.is_empty() && !decision.unsettled.is_empty() {
            return;
        }
        self.position = through;
        self.holes = holes;
        self.holes.extend(&decision.unsettled);
        self.holes.sort_unstable();
        self.holes.dedup();
    }
}

/// The lanes of the rows that wait behind others.
fn behind(park: &[Park]) -> Vec<LaneKey> {
    let mut lanes: Vec<LaneKey> =
        park.iter().filter(|p| p.parking == Parking::Behind).filter_map(|p| p.lane.clone()).collect();
    lanes.sort_unstable();
    lanes.dedup();
    lanes
}

/// A batch read but not settled yet.
pub(super) struct Read {
    pub(super) batch: Batch,
    pub(super) through: Position,
    pub(super) holes: Vec<Position>,
    pub(super) full: bool,
}

impl<S: Mailbox, P: Publisher> Relay<S, P> {
    pub(super) fn merge_lanes(&mut self) {
        let mut merged: Vec<Lane> = Vec::new();
        for lane in self.lanes.drain(..) {
            match merged.iter_mut().find(|m| m.position == lane.position && m.holes == lane.holes) {
                Some(same) => {
                    same.fences.extend(lane.fences);
                    same.fences.sort_unstable();
                }
                None => merged.push(lane),
            }
        }
        self.lanes = merged;
    }

    /// Reads, publishes and settles one lane until it is empty, the
    /// destination fails or the lease needs renewal.
    pub(super) async fn drive(&mut self, index: usize) -> Result<Progress> {
        let Some(mut lane) = self.lanes.get(index).cloned().filter(|_| self.has_time()) else {
            return Ok(Progress::default());
        };
        let shards: Vec<Shard> = lane.shards().collect();
        let sink = self.options.sink.clone();
        let mut progress = Progress::default();
        let span = self.read(&shards, lane.position, &lane.holes).await?;
        let mut current = self.sorted(span);
        let mut unsettled: Option<Settlement> = None;
        let started = Instant::now();
        let mut written = started;
        loop {
            self.probe.reach(CrashPoint::R2).await?;
            // What is put off here is part of the next settlement: progress only grows.
            let is_due = |s: &mut Settlement| !s.park.is_empty() || written.elapsed() >= SETTLE_INTERVAL;
            let due = unsettled.take_if(is_due);
            if due.is_some() {
                written = Instant::now();
            }
            let more = current.full && started.elapsed() < SLICE && self.has_time() && !self.stopping();
            let (results, next, settled) = tokio::join!(
                self.publish(&current.batch.envelopes),
                async {
                    match more {
                        true => Some(self.read(&shards, current.through, &current.holes).await),
                        false => None,
                    }
                },
                self.settle(due),
            );
            settled?;
            self.probe.reach(CrashPoint::R5).await?;
            self.look_ahead(&shards, &mut current, &results).await?;
            let mut decision = self.decide(&mut current.batch, results);
            decision.park.append(&mut current.batch.park);
            progress.add(Progress {
                published: decision.settled.len(),
                parked: decision.park.len(),
                outage: decision.outage.clone(),
                retry_after: decision.retry_after,
                pending: decision.pending,
                ..Progress::default()
            });
            let before = (lane.position, lane.holes.len());
            lane.advance(current.through, current.holes, &decision);
            self.blocked.extend(decision.blocked);
            if (lane.position, lane.holes.len()) != before || !decision.park.is_empty() {
                // What this relay remembers as blocked may have been discarded
                // meanwhile: a row parked behind nothing is freed at once.
                let free = behind(&decision.park);
                let skip_dead = self.options.skips_dead();
                unsettled =
                    Some(Settlement { park: decision.park, free, skip_dead, ..lane.settlement(&sink) });
            }
            match next {
                Some(span) if decision.outage.is_none() && !decision.pending && self.has_time() => {
                    current = self.sorted(span?)
                }
                _ => break,
            }
        }
        self.settle(unsettled).await?;
        self.probe.reach(CrashPoint::R6).await?;
        if let Some(slot) = self.lanes.get_mut(index) {
            *slot = lane;
        }
        telemetry::published(&sink, progress.published);
        telemetry::parked(&sink, progress.parked);
        Ok(progress)
    }

    pub(super) async fn read(&self, shards: &[Shard], after: Position, holes: &[Position]) -> Result<Span> {
        self.store.read(Window { shards, after, holes, limit: self.options.batch }).await
    }

    async fn settle(&self, settlement: Option<Settlement>) -> Result<()> {
        match settlement {
            Some(settlement) => self.store.settle(&settlement, self.clock.now()).await,
            None => Ok(()),
        }
    }

    fn sorted(&self, span: Span) -> Read {
        let Span { rows, through, holes, full } = span;
        Read { batch: Batch::of_rows(rows, &self.blocked), through, holes, full }
    }
}
