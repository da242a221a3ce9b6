//! Which shards this relay may move, and until when.

use std::time::Duration;

use oncebox_core::Result;
use oncebox_core::log::{ClaimRequest, Cursor, LaneKey, SHARDS, Settlement, Shard};
use oncebox_core::plan::Blocked;
use oncebox_core::store::Mailbox;
use oncebox_core::transport::Publisher;
use tokio::time::Instant;

use super::Relay;
use super::lane::Lane;

/// How often a relay without all shards looks for free ones.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A claim and when it was asked for. The age is measured from before the
/// request, on this machine's monotonic clock: the database's lease is always
/// at least as fresh as this relay believes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    asked: Instant,
}

impl Lease {
    pub(super) fn age(self) -> Duration {
        self.asked.elapsed()
    }
}

impl<S: Mailbox, P: Publisher> Relay<S, P> {
    /// Claims or renews when a third of the lease is over; sooner while some
    /// shards belong to others, who may have given them back, or when there
    /// is news of the destination for those who look at the database.
    pub(super) async fn ensure_lease(&mut self) -> Result<()> {
        let held: usize = self.lanes.iter().map(|lane| lane.fences.len()).sum();
        let third = self.options.lease / 3;
        let renewal = if held == usize::from(SHARDS.unsigned_abs()) { third } else { third.min(LOOK_AGAIN) };
        let fresh = self.lease.is_some_and(|lease| lease.age() < renewal) && !self.outage.is_news();
        if fresh && self.has_time() {
            return Ok(());
        }
        let asked = Instant::now();
        let request = ClaimRequest {
            sink: self.options.sink.clone(),
            holder: self.holder.clone(),
            lease: self.options.lease,
            outage: self.outage.reason(),
        };
        let cursors = self.store.claim(&request, self.clock.now()).await?;
        self.outage.told(request.outage);
        let is_held = |lane: &Lane, cursor: &Cursor| lane.fences.contains(&(cursor.shard, cursor.fence));
        let has_gained = !cursors.iter().all(|cursor| self.lanes.iter().any(|lane| is_held(lane, cursor)));
        self.lanes = Lane::regroup(std::mem::take(&mut self.lanes), cursors);
        self.lease = Some(Lease { asked });
        self.reload_blocked().await?;
        if has_gained && self.options.skips_dead() {
            self.pass_dead().await?;
        }
        Ok(())
    }

    /// Whoever had these shards before may have let dead letters block their
    /// keys, and left rows behind them that nothing sets going again.
    async fn pass_dead(&self) -> Result<()> {
        let free: Vec<LaneKey> = self.blocked.lanes().cloned().collect();
        if free.is_empty() {
            return Ok(());
        }
        let settlement = Settlement {
            sink: self.options.sink.clone(),
            fences: self.lanes.iter().flat_map(|lane| lane.fences.clone()).collect(),
            free,
            skip_dead: true,
            ..Settlement::default()
        };
        self.store.settle(&settlement, self.clock.now()).await
    }

    /// Whether a batch started now is over before the lease is.
    pub(super) fn has_time(&self) -> bool {
        self.lease
            .is_some_and(|lease| lease.age() + self.options.publish_timeout < self.options.lease / 3 * 2)
    }

    pub(super) async fn reload_blocked(&mut self) -> Result<()> {
        let shards: Vec<Shard> = self.lanes.iter().flat_map(Lane::shards).collect();
        let (sink, skip_dead) = (&self.options.sink, self.options.skips_dead());
        self.blocked = match shards.is_empty() {
            true => Blocked::default(),
            false => Blocked::new(self.store.blocked(sink, &shards, skip_dead).await?),
        };
        Ok(())
    }
}
