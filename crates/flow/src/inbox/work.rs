//! Durable mode, second half: stored deliveries are run, each handler by itself.
//!
//! A worker leases deliveries that are due, a few more than it has seats, and
//! its seats run them one after the other. The attempt of a delivery is counted
//! before its body runs; mostly it rides on the commit of the one before, so
//! that it costs no commit of its own. What a run writes and that it is done
//! are one commit, which succeeds only while the lease is this worker's.
//!
//! - `floor`: what this worker holds, and how much more it may take.
//! - `desk`: one seat's work on one delivery; `batch`: on several in one commit.
//! - `fate`: what becomes of a delivery whose run did not commit.
//! - `heart`: leases are renewed from a thread of their own.

mod batch;
mod desk;
mod fate;
mod floor;
mod heart;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{TakeRequest, Taken, Want};
use oncebox_core::store::Mailbox;
use oncebox_core::{Depot, Error, Kind, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::handler::{Erased, Mode};
use super::{Inbox, checks};
use crate::chance;
use crate::wakeup::Listener;
use desk::Desk;
pub use desk::Worked;
use floor::Floor;

/// The pause after nothing was due; doubled up to the poll interval.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// The pause after the store failed.
const ERROR_PAUSE: Duration = Duration::from_millis(500);
/// How often handlers are announced.
const ANNOUNCE: Duration = Duration::from_secs(30);
/// How often suspects are looked for, at most.
const LOOK_FOR_SUSPECTS: Duration = Duration::from_secs(5);
/// The same while long runs leave no room for them.
const SELDOM: Duration = Duration::from_secs(60);
/// How long a worker takes nothing else to make room for a suspect.
const MAKE_ROOM: Duration = Duration::from_secs(2);
/// Suspects run in a row before others get their turn.
const SUSPECTS_IN_A_ROW: usize = 10;
/// Orphans parked at once.
const ORPHANS: usize = 1_000;
/// A lease cannot be renewed in less.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Everything that can be chosen about a worker.
#[derive(Clone, Debug)]
pub struct WorkOptions {
    /// Deliveries run at once. Default 4.
    pub concurrency: usize,
    /// The most deliveries leased beyond those that run, so that leasing costs
    /// one commit for many. A worker leases ahead what it gets done in a
    /// quarter of a second, and no more than this. Default 128.
    pub prefetch: usize,
    /// Deliveries per commit. With more than one, a seat runs several in one
    /// transaction, each behind a savepoint of its own: several times as fast
    /// where a commit is what costs, and those that run well wait for each
    /// other. A process that dies has then tried all of its batch. Default 1.
    pub batch: usize,
    /// How long a lease lasts without renewal; it is renewed three times as
    /// often. What a killed worker held is taken up after this. Default 60 s.
    pub lease: Duration,
    /// The longest wait before the database is asked again. Deposits of this
    /// process are noticed at once. Default 1 s.
    pub poll: Duration,
    /// How long a stop waits for handlers that are running. Default 30 s.
    pub drain: Duration,
    /// After this long, deliveries whose handler no process knows are parked
    /// and shown as such; they are never buried. Default 1 h.
    pub orphan_after: Duration,
}

impl Default for WorkOptions {
    fn default() -> Self {
        Self {
            concurrency: 4,
            prefetch: 128,
            batch: 1,
            lease: Duration::from_secs(60),
            poll: Duration::from_secs(1),
            drain: Duration::from_secs(30),
            orphan_after: Duration::from_secs(3600),
        }
    }
}

impl WorkOptions {
    fn check(&self) -> Result<()> {
        if self.concurrency == 0 {
            return Err(Error::new(
                Kind::Config,
                "a worker with a concurrency of 0 would never run anything",
            ));
        }
        if self.lease < SHORTEST_LEASE {
            let text = format!(
                "a lease of {:?} cannot be renewed in time; choose at least {SHORTEST_LEASE:?}",
                self.lease
            );
            return Err(Error::new(Kind::Config, text));
        }
        if self.batch == 0 {
            return Err(Error::new(Kind::Config, "a batch has at least one delivery"));
        }
        checks::positive("poll", self.poll)
    }
}

/// Runs the durable handlers of one inbox. Any number of workers, in any
/// number of processes, share the work.
pub struct Worker<S: Mailbox + Depot> {
    desk: Arc<Desk<S>>,
    options: WorkOptions,
    holder: String,
}

impl<S: Mailbox + Depot> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("holder", &self.holder)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<S: Mailbox + Depot> Worker<S> {
    /// A worker for what `inbox` stores.
    ///
    /// # Errors
    /// [`Kind::Config`] for options that cannot work, or if the inbox has no
    /// durable handler.
    pub fn new(inbox: &Inbox<S>, options: WorkOptions) -> Result<Self> {
        options.check()?;
        let inner = Arc::clone(&inbox.inner);
        let durable =
            inner.handlers.iter().filter(|handler| inner.mode_of(handler.as_ref()) == Mode::Durable);
        let durable: Vec<_> = durable.cloned().collect();
        if durable.is_empty() {
            let text =
                format!("channel {} has no durable handler, so there is nothing to work on", inner.channel);
            return Err(Error::new(Kind::Config, text));
        }
        let is_tried_once =
            |handler: &&Arc<dyn Erased<S>>| inner.policy(handler.key()).max_attempts == Some(1);
        if let Some(handler) = durable.iter().find(is_tried_once).filter(|_| options.batch > 1) {
            let text = format!(
                "handler {} has one attempt, but a process that dies has tried all of its batch: \
                 choose a batch of 1, or more attempts",
                handler.key()
            );
            return Err(Error::new(Kind::Config, text));
        }
        let rules = durable.iter().map(|handler| {
            let mut keys = vec![handler.key().as_str()];
            keys.extend(handler.options().legacy.iter().map(|key| key.as_str()));
            floor::Rule::of(keys, handler.options())
        });
        let at_once = options.concurrency.saturating_mul(options.batch);
        let floor = Arc::new(Floor::new(rules.collect(), at_once, options.prefetch));
        let desk = Arc::new(Desk::new(inner, durable, floor, options.lease));
        Ok(Self { desk, options, holder: chance::holder() })
    }

    /// Works until `stop` is cancelled, then lets running handlers finish and
    /// gives everything else back. True if all of them ended in time; those
    /// that did not are rolled back and given back, too.
    pub async fn run(self, stop: CancellationToken) -> bool {
        let mut seats = JoinSet::new();
        for _ in 0..self.options.concurrency {
            seats.spawn(Arc::clone(&self.desk).sit(self.options.batch));
        }
        let (desk, lease) = (Arc::clone(&self.desk), self.options.lease);
        let heart = heart::spawn(async move { desk.beat(lease).await });
        self.keep_busy(&stop).await;
        let floor = &self.desk.floor;
        self.give_back(floor.close()).await;
        let drained =
            timeout(self.options.drain, async { while seats.join_next().await.is_some() {} }).await.is_ok();
        seats.shutdown().await;
        self.give_back(floor.tickets()).await;
        drop(heart);
        info!(drained, "worker.stopped");
        drained
    }

    async fn give_back(&self, tickets: Vec<oncebox_core::depot::Ticket>) {
        if tickets.is_empty() {
            return;
        }
        let given = timeout(
            self.options.drain,
            self.desk.inner.store.give_back(&tickets, self.desk.inner.clock.now()),
        )
        .await;
        if !matches!(given, Ok(Ok(()))) {
            // Others take them up when the leases have run out.
            warn!(count = tickets.len(), "worker.give_back_failed");
        }
    }

    /// Takes deliveries as fast as they are run.
    async fn keep_busy(&self, stop: &CancellationToken) {
        let mut listener = self.desk.inner.stored.listen();
        let mut pause = SHORTEST_PAUSE;
        let (mut announced, mut looked) = (None::<Instant>, None::<Instant>);
        let often = LOOK_FOR_SUSPECTS.min(self.options.lease / 2);
        let mut interval = often;
        while !stop.is_cancelled() {
            if announced.is_none_or(|at| at.elapsed() >= ANNOUNCE) {
                announced = Some(Instant::now());
                self.announce().await;
            }
            if looked.is_none_or(|at| at.elapsed() >= interval) {
                let had_room = self.run_suspects(stop).await;
                looked = Some(Instant::now());
                // Somebody else may have room; this worker does not stand still for it.
                interval = if had_room { often } else { (interval * 2).min(SELDOM) };
            }
            if !self.desk.floor.wants_more() {
                let freed = timeout(self.options.poll, self.desk.floor.freed());
                stop.run_until_cancelled(freed).await;
                continue;
            }
            match self.take(false, usize::MAX).await {
                Ok(0) => {
                    self.idle(stop, &mut listener, pause).await;
                    pause = (pause * 2).min(self.options.poll);
                }
                Ok(_taken) => pause = SHORTEST_PAUSE,
                Err(error) => {
                    warn!(error = error.chain(), "worker.take_failed");
                    stop.run_until_cancelled(sleep(ERROR_PAUSE)).await;
                }
            }
        }
    }

    async fn idle(&self, stop: &CancellationToken, listener: &mut Listener, pause: Duration) {
        let hinted = timeout(pause, listener.hinted());
        stop.run_until_cancelled(hinted).await;
    }

    async fn announce(&self) {
        let inner = &self.desk.inner;
        let announced = inner.store.announce(&inner.scope, &self.desk.floor.keys(), inner.clock.now()).await;
        if let Err(error) = announced {
            warn!(error = error.chain(), "worker.announce_failed");
            return;
        }
        match inner.store.park_orphans(self.options.orphan_after, ORPHANS, inner.clock.now()).await {
            Ok(0) => {}
            Ok(parked) => warn!(parked, "worker.orphans_parked"),
            Err(error) => warn!(error = error.chain(), "worker.park_failed"),
        }
    }

    /// Leases what is due and puts it on the floor; tells how many.
    async fn take(&self, suspects: bool, limit: usize) -> Result<usize> {
        let (inner, floor) = (&self.desk.inner, &self.desk.floor);
        let room = floor.room();
        let wants = floor.wants();
        let wants: Vec<Want<'_>> =
            wants.iter().map(|(handler, limit)| Want { handler, limit: *limit }).collect();
        if wants.is_empty() || room.free == 0 {
            return Ok(0);
        }
        let request = TakeRequest {
            scope: &inner.scope,
            holder: &self.holder,
            lease: self.options.lease,
            limit: room.free.min(limit),
            // A batch cannot count its attempts on the back of others' commits.
            seats: if self.options.batch > 1 {
                usize::MAX
            } else {
                self.options.concurrency.saturating_sub(room.held)
            },
            wants: &wants,
            suspects,
        };
        let taken = inner.store.take(&request, inner.clock.now()).await?;
        let count = taken.len();
        let surplus = floor.accept(taken);
        self.give_back(surplus).await;
        Ok(count)
    }

    /// Deliveries whose last run may have killed its process are run with
    /// nobody beside them. False if others did not make room in time.
    async fn run_suspects(&self, stop: &CancellationToken) -> bool {
        let (inner, floor) = (&self.desk.inner, &self.desk.floor);
        let keys = floor.keys();
        let wants: Vec<Want<'_>> = keys.iter().map(|handler| Want { handler, limit: 1 }).collect();
        for _ in 0..SUSPECTS_IN_A_ROW {
            let has_suspects = inner.store.has_suspects(&inner.scope, &wants, inner.clock.now()).await;
            if stop.is_cancelled() || !has_suspects.unwrap_or(false) {
                return true;
            }
            let cleared = floor.cleared(MAKE_ROOM, |handler| self.desk.longest(handler));
            match stop.run_until_cancelled(cleared).await {
                Some(true) => {}
                Some(false) => return false,
                None => return true,
            }
            if !matches!(self.take(true, 1).await, Ok(1)) {
                return true;
            }
            let over = floor.cleared(Duration::MAX, |handler| self.desk.longest(handler));
            if stop.run_until_cancelled(over).await.is_none() {
                return true;
            }
        }
        true
    }

    /// Runs one delivery that is due, to the end, in this task: for tests and
    /// for those who have a loop of their own. `None` if nothing is due.
    ///
    /// # Errors
    /// By kind of the failed statement.
    pub async fn step(&self) -> Result<Option<Worked>> {
        self.announce().await;
        for suspects in [false, true] {
            if self.take(suspects, 1).await? > 0 {
                let taken: Option<Taken> = self.desk.floor.reserve();
                return Ok(match taken {
                    Some(taken) => Some(self.desk.handle(taken.into(), false).await.0),
                    None => None,
                });
            }
        }
        Ok(None)
    }

    /// Runs what is due until nothing is, in this task. What is to be tried
    /// again later is not due.
    ///
    /// # Errors
    /// By kind of the failed statement.
    pub async fn run_until_idle(&self) -> Result<Vec<Worked>> {
        let mut worked = Vec::new();
        while let Some(one) = self.step().await? {
            worked.push(one);
        }
        Ok(worked)
    }
}
