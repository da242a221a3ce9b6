//! A durable inbox on one store, and workers for it.

use std::future::{Pending, pending};
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::Depot;
use oncebox_core::inspect::{HandlerStatus, Inspect as _};
use oncebox_core::letters::{DeadLetter, LetterFilter, Letters};
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Backoff, HandlerError, Outcome, Verdict};
use oncebox_flow::inbox::{Effects, InboxBuilder, Worked};
use oncebox_flow::{Clock, Inbox, Outbox, WorkOptions, Worker};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::fixture::StoreFixture;
use crate::path::scene::{Booker, arrived};
use crate::sample::{DESTINATION, Posted, SOURCE, moment};

/// The lease of all workers here, in the scene's time.
pub const LEASE: Duration = Duration::from_secs(60);

/// A store whose time stands still.
pub struct Bench<F: StoreFixture> {
    pub fixture: Arc<F>,
    pub store: F::Store,
    pub clock: Clock,
    pub outbox: Outbox<F::Store>,
}

impl<F: StoreFixture> Bench<F>
where
    F::Store: Depot + Letters,
{
    pub fn new(fixture: &Arc<F>) -> Self {
        let (store, clock) = (fixture.store(), Clock::manual(moment(0)));
        Self {
            fixture: Arc::clone(fixture),
            outbox: Outbox::new(store.clone()).source(SOURCE).clock(clock.clone()),
            store,
            clock,
        }
    }

    /// A booking handler.
    pub fn booker(&self, key: &'static str) -> Booker<F> {
        crate::path::scene::Scene::new(&self.fixture).booker(key)
    }

    /// A durable inbox that tries three times, a second apart.
    pub fn inbox(&self) -> InboxBuilder<F::Store> {
        self.receiver().durable()
    }

    /// The same in receiver mode.
    pub fn receiver(&self) -> InboxBuilder<F::Store> {
        let inbox = Inbox::builder(self.store.clone(), DESTINATION);
        inbox.outbox(self.outbox.clone()).clock(self.clock.clone()).retry(patient(3))
    }

    /// A worker with four seats.
    pub fn worker(&self, inbox: &Inbox<F::Store>) -> Worker<F::Store> {
        Worker::new(inbox, options()).unwrap()
    }

    /// Delivers messages as a transport would, each as its own id.
    pub async fn deliver(&self, inbox: &Inbox<F::Store>, sequences: impl IntoIterator<Item = i64>) {
        for sequence in sequences {
            self.deliver_one(inbox, &sequence.to_string(), &Posted::on("red", sequence)).await;
        }
    }

    pub async fn deliver_one(&self, inbox: &Inbox<F::Store>, id: &str, message: &Posted) {
        assert_eq!(inbox.deliver(arrived(id, message), 1).await, Verdict::Done);
    }

    /// The sequences of the effects, sorted.
    pub async fn effects(&self) -> Vec<i64> {
        let mut sequences = self.effects_in_order().await;
        sequences.sort_unstable();
        sequences
    }

    pub async fn effects_in_order(&self) -> Vec<i64> {
        self.fixture.effects().await.iter().map(|effect| effect.sequence).collect()
    }

    /// The sequences of one handler's effects, sorted.
    pub async fn effects_of(&self, handler: &str) -> Vec<i64> {
        let effects = self.fixture.effects().await;
        let mut sequences: Vec<i64> =
            effects.iter().filter(|effect| effect.handler == handler).map(|effect| effect.sequence).collect();
        sequences.sort_unstable();
        sequences
    }

    pub async fn letters(&self) -> Vec<DeadLetter> {
        self.store.letters(&LetterFilter::default(), 100).await.unwrap()
    }

    /// Counts of a handler's deliveries that are not over.
    pub async fn counts(&self, handler: &str) -> HandlerStatus {
        let status = self.store.status().await.unwrap();
        status.handlers.into_iter().find(|counts| counts.handler == handler).unwrap_or_default()
    }

    /// Runs everything that is due, letting time pass for what is to be tried again.
    pub async fn exhaust(&self, worker: &Worker<F::Store>) -> Vec<Worked> {
        let mut worked = Vec::new();
        for _ in 0..20 {
            worked.extend(worker.run_until_idle().await.unwrap());
            self.clock.advance(Duration::from_secs(2));
        }
        worked
    }

    /// Runs workers in tasks until the handler has had this many effects.
    pub async fn run_until(&self, workers: Vec<Worker<F::Store>>, handler: &str, effects: usize) {
        let stop = CancellationToken::new();
        let running: Vec<_> =
            workers.into_iter().map(|worker| tokio::spawn(worker.run(stop.clone()))).collect();
        while self.effects_of(handler).await.len() < effects {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
        for worker in running {
            assert!(worker.await.unwrap(), "all handlers ended");
        }
    }
}

/// Four seats.
#[must_use]
pub fn options() -> WorkOptions {
    WorkOptions { concurrency: 4, lease: LEASE, poll: Duration::from_millis(20), ..WorkOptions::default() }
}

/// This many attempts, a second apart.
#[must_use]
pub fn patient(attempts: u32) -> RetryPolicy {
    let second = Duration::from_secs(1);
    let backoff = Backoff { base: second, cap: second };
    RetryPolicy { max_attempts: Some(attempts), backoff, busy_delay: second }
}

/// Whether a run took effect.
#[must_use]
pub fn is_done(worked: &Worked) -> bool {
    matches!(worked.outcome, Some(Outcome::Done { .. }))
}

type Endless = Pending<Result<(), HandlerError>>;

/// A body that never ends, and tells of each time it begins.
pub fn endless() -> (impl Fn(Effects, Posted) -> Endless, UnboundedReceiver<()>) {
    let (started, has_started) = unbounded_channel();
    let body = move |_effects: Effects, _message: Posted| {
        started.send(()).ok();
        pending()
    };
    (body, has_started)
}
