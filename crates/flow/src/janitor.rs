//! Forgets what nobody needs any more, a bounded batch at a time.
//!
//! Never on the request path, never a dead letter, never a row some sink has
//! not settled, and never by this process's clock.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncebox_core::store::{Purge, Retention};
use oncebox_core::{Error, HandlerKey, Kind, Result, Timestamp};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::chance;
use crate::clock::Clock;
use crate::telemetry;

/// Rows deleted by one statement.
const BATCH: usize = 5_000;
/// Statements per table and sweep; the rest waits for the next sweep.
const BATCHES_PER_SWEEP: usize = 200;
/// A sweep that takes longer hangs, on a connection nobody answers on.
const SWEEP_LIMIT: Duration = Duration::from_secs(3600);
/// Settled messages are kept at least this long, for replay after a broker lost them.
const SHORTEST_OUTBOX: Duration = Duration::from_secs(3600);
/// A clock that moved by more than this since the last sweep is not believed.
const CLOCK_JUMP: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long what is known of a handler's past is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The scope of its inbox.
    pub scope: String,
    /// The handler's key, or a former one.
    pub handler: HandlerKey,
    /// Its name in markers.
    pub marker: String,
    /// How long.
    pub kept: Duration,
}

/// What a sweep deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Settled rows of the log.
    pub outbox: usize,
    /// Markers.
    pub markers: usize,
    /// Finished deliveries of the durable inbox.
    pub deliveries: usize,
}

/// Deletes settled outbox rows and markers when they are old enough.
#[derive(Debug)]
pub struct Janitor<S> {
    store: S,
    outbox: Duration,
    markers: Vec<Kept>,
    holder: String,
    interval: Duration,
    clock: Clock,
    last: Mutex<Option<(Timestamp, Instant)>>,
}

impl<S: Retention> Janitor<S> {
    /// A janitor that keeps settled messages for seven days and sweeps every ten minutes.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self {
            store,
            outbox: 7 * DAY,
            markers: Vec::new(),
            holder: chance::holder(),
            interval: Duration::from_secs(600),
            clock: Clock::default(),
            last: Mutex::new(None),
        }
    }

    /// How long settled messages are kept.
    ///
    /// # Errors
    /// [`Kind::Config`] below an hour: a broker that loses what it confirmed
    /// could not be helped any more.
    pub fn outbox(mut self, kept: Duration) -> Result<Self> {
        if kept < SHORTEST_OUTBOX {
            return Err(Error::new(
                Kind::Config,
                format!("settled messages must be kept for at least {SHORTEST_OUTBOX:?}, not {kept:?}"),
            ));
        }
        self.outbox = kept;
        Ok(self)
    }

    /// The handlers whose markers it purges, and how long each is kept; take
    /// it from [`Inbox::retentions`](crate::Inbox::retentions), which has
    /// checked the windows.
    #[must_use]
    pub fn markers(mut self, markers: impl IntoIterator<Item = Kept>) -> Self {
        self.markers.extend(markers);
        self
    }

    /// The time between two sweeps.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// The clock of tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// One sweep over everything.
    ///
    /// # Errors
    /// By kind of the failed statement; what was deleted stays deleted.
    pub async fn sweep(&self) -> Result<Swept> {
        self.check_clock().await?;
        let mut swept = Swept { outbox: self.purge(&Purge::Outbox(self.outbox)).await?, ..Swept::default() };
        for Kept { scope, handler, marker, kept } in &self.markers {
            let purge = Purge::Markers { handler: marker.clone(), older_than: *kept };
            swept.markers += self.purge(&purge).await?;
            let (scope, handler) = (scope.clone(), handler.as_str().to_owned());
            swept.deliveries += self.purge(&Purge::Deliveries { scope, handler, older_than: *kept }).await?;
        }
        self.purge(&Purge::Relays(DAY)).await?;
        let longest = self.markers.iter().map(|kept| kept.kept).max().unwrap_or(7 * DAY);
        self.purge(&Purge::Entries(longest)).await?;
        self.purge(&Purge::Messages(longest)).await?;
        telemetry::purged("outbox", swept.outbox);
        telemetry::purged("marker", swept.markers);
        telemetry::purged("delivery", swept.deliveries);
        Ok(swept)
    }

    /// A clock that was set forward makes everything look old at once, so a
    /// sweep is refused when the database's time and this machine's monotonic
    /// one have drifted apart since the last sweep. A clock that then holds
    /// still is believed by the sweep after: it may have been mended.
    async fn check_clock(&self) -> Result<()> {
        if self.clock.now().is_some() {
            return Ok(());
        }
        let mut begun = self.store.begin().await?;
        let now = self.store.clock(&mut begun).await;
        self.store.rollback(begun).await?;
        let now = now?;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace((now, Instant::now()));
        let Some((before, at)) = last else { return Ok(()) };
        let expected = before.plus(at.elapsed());
        if now.since(expected) > CLOCK_JUMP || expected.since(now) > CLOCK_JUMP {
            return Err(Error::new(
                Kind::Unavailable,
                format!(
                    "the database's clock jumped (it says {now}, expected about {expected}); nothing is purged in this sweep"
                ),
            ));
        }
        Ok(())
    }

    async fn purge(&self, purge: &Purge) -> Result<usize> {
        let mut total = 0;
        for _ in 0..BATCHES_PER_SWEEP {
            let deleted = self.store.purge(purge, BATCH, self.clock.now()).await?;
            total += deleted;
            if deleted < BATCH {
                break;
            }
        }
        Ok(total)
    }

    /// Of several processes on one database, one sweeps.
    async fn sweep_if_it_is_mine(&self) -> Result<Option<Swept>> {
        let lease = self.interval.saturating_mul(2);
        if !self.store.hold_broom(&self.holder, lease, self.clock.now()).await? {
            return Ok(None);
        }
        self.sweep().await.map(Some)
    }

    /// Sweeps until `stop` is cancelled. Errors are reported and tried again
    /// at the next sweep. A stop does not wait for a sweep: what it has not
    /// deleted is deleted later.
    pub async fn run(self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(self.interval)).await.is_some() {
            let sweep = tokio::time::timeout(SWEEP_LIMIT, self.sweep_if_it_is_mine());
            match stop.run_until_cancelled(sweep).await {
                None => return,
                Some(Ok(Ok(None))) => {}
                Some(Ok(Ok(Some(swept)))) => {
                    info!(outbox = swept.outbox, markers = swept.markers, "janitor.swept")
                }
                Some(Ok(Err(error))) => warn!(error = error.chain(), "janitor.sweep_failed"),
                Some(Err(_elapsed)) => warn!(error = "it took too long", "janitor.sweep_failed"),
            }
        }
    }
}
