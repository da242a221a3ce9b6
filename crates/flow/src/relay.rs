//! Stations 2 to 5 of the walk: committed messages are read, published, settled.
//!
//! From: the log. Here: shards are claimed under a lease, rows are read and
//! sorted, published with all their confirms awaited, and exactly what was
//! confirmed is settled under the fence of the claim. To: the transport.
//!
//! The three steps overlap: while a batch is published, the next one is read
//! and what was confirmed before is settled, at most every few milliseconds. Batches are published one after the other, so
//! the order of a key never depends on two calls at once.

mod builder;
mod heartbeat;
mod lane;
mod lease;
mod lookahead;
mod outage;
mod publish;
mod run;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::log::{DueRow, LaneKey, Shard};
use oncebox_core::plan::{Batch, Blocked};
use oncebox_core::store::Mailbox;
use oncebox_core::transport::Publisher;
use oncebox_core::{Result, log::Settlement};
use tokio_util::sync::CancellationToken;

pub use builder::{RelayBuilder, RelayOptions};
pub use heartbeat::Heartbeat;
pub use run::RelayReport;

use crate::chance;
use crate::clock::Clock;
use crate::crash::Probe;
use crate::telemetry;
use crate::wakeup::Wakeup;
use lane::Lane;
use lease::Lease;
use outage::Outage;

/// Scheduled messages moved to the log in one statement.
const PROMOTE_LIMIT: usize = 1000;

/// What one pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Messages confirmed and settled.
    pub published: usize,
    /// Messages put beside the log, waiting or dead.
    pub parked: usize,
    /// Scheduled messages that entered the log.
    pub promoted: usize,
    /// Shards held.
    pub shards: usize,
    /// Why the destination was not usable, if it was not.
    pub outage: Option<String>,
    /// How long the destination wants to be left alone, if it said so.
    pub retry_after: Option<Duration>,
    /// Whether a slow transport still owes confirms.
    pub pending: bool,
}

impl Progress {
    fn add(&mut self, other: Self) {
        self.pending |= other.pending;
        self.published += other.published;
        self.parked += other.parked;
        self.promoted += other.promoted;
        self.outage = self.outage.take().or(other.outage);
        self.retry_after = self.retry_after.max(other.retry_after);
    }

    /// Whether anything happened that may lead to more.
    #[must_use]
    pub const fn moved(&self) -> bool {
        self.published > 0 || self.parked > 0 || self.promoted > 0 || self.pending
    }
}

/// Carries messages from one store to one sink.
///
/// Any number of relays, in any number of processes, may serve the same sink:
/// they share its shards. A relay that loses its lease cannot settle.
pub struct Relay<S, P> {
    store: S,
    publisher: Arc<P>,
    options: RelayOptions,
    holder: String,
    lease: Option<Lease>,
    lanes: Vec<Lane>,
    blocked: Blocked,
    outage: Outage,
    clock: Clock,
    wakeup: Wakeup,
    heartbeat: Heartbeat,
    probe: Probe,
    stop: CancellationToken,
}

impl<S: fmt::Debug, P> fmt::Debug for Relay<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("store", &self.store)
            .field("holder", &self.holder)
            .finish_non_exhaustive()
    }
}

impl<S: Mailbox, P: Publisher> Relay<S, P> {
    /// A relay from `store` to `publisher`, to be configured.
    pub fn builder(store: S, publisher: P) -> RelayBuilder<S, P> {
        RelayBuilder::new(store, Arc::new(publisher))
    }

    /// The name under which this relay holds its leases.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// One pass: claim or renew, move due messages into the log, try parked
    /// ones again, then read, publish and settle until nothing is left or the
    /// lease needs renewal. For tests, cron jobs and serverless functions.
    ///
    /// # Errors
    /// By kind. Nothing is lost: what was not settled is read again.
    pub async fn step(&mut self) -> Result<Progress> {
        let stepped = self.pass().await;
        if stepped.is_err() {
            // What this relay believed about its cursors may be wrong now.
            self.forget();
        }
        stepped
    }

    async fn pass(&mut self) -> Result<Progress> {
        self.ensure_lease().await?;
        let promoted = self.store.promote(PROMOTE_LIMIT, self.clock.now()).await?;
        let mut progress = Progress { promoted, ..Progress::default() };
        progress.add(self.retry_parked().await?);
        // Those who are behind first, and each for a while: nobody starves.
        self.lanes.sort_by_key(|lane| lane.position);
        for index in 0..self.lanes.len() {
            if progress.outage.is_some() {
                break;
            }
            progress.add(self.drive(index).await?);
        }
        self.merge_lanes();
        progress.shards = self.lanes.iter().map(|lane| lane.fences.len()).sum();
        self.outage.learn(&progress);
        Ok(progress)
    }

    /// Gives back all shards, for other relays to take at once.
    ///
    /// # Errors
    /// By kind; the leases then run out by themselves.
    pub async fn release(&mut self) -> Result<()> {
        self.forget();
        self.store.release(&self.options.sink, &self.holder).await
    }

    fn forget(&mut self) {
        self.lease = None;
        self.lanes.clear();
        self.blocked = Blocked::default();
    }

    /// Tries parked messages whose time has come, in the order of their lanes.
    async fn retry_parked(&mut self) -> Result<Progress> {
        let shards: Vec<Shard> = self.lanes.iter().flat_map(Lane::shards).collect();
        if shards.is_empty() || !self.has_time() {
            return Ok(Progress::default());
        }
        let (sink, limit) = (&self.options.sink, self.options.batch);
        let due = self.store.due(sink, &shards, limit, self.clock.now()).await?;
        if due.is_empty() {
            return Ok(Progress::default());
        }
        let mut batch = Batch::default();
        for DueRow { row, attempts } in due {
            batch.push_row(row, attempts);
        }
        let results = self.publish(&batch.envelopes).await;
        let mut decision = self.decide(&mut batch, results);
        decision.stay_parked(&batch, &self.options.retry, chance::draw());
        decision.park.append(&mut batch.park);
        let (published, parked) = (decision.settled.len(), decision.park.len());
        let settlement = Settlement {
            sink: self.options.sink.clone(),
            fences: self.lanes.iter().flat_map(|lane| lane.fences.clone()).collect(),
            progress: None,
            park: decision.park,
            unpark: decision.settled,
            free: batch.envelopes.iter().filter_map(LaneKey::of).collect(),
            skip_dead: self.options.skips_dead(),
        };
        self.store.settle(&settlement, self.clock.now()).await?;
        self.reload_blocked().await?;
        telemetry::published(&self.options.sink, published);
        telemetry::parked(&self.options.sink, parked);
        Ok(Progress { published, parked, pending: decision.pending, ..Progress::default() })
    }
}
