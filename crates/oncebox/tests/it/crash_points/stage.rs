//! A scene whose actors die where they are told to.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::crash::Reaction;
use oncebox::memory::{MemoryFeed, MemoryTransport};
use oncebox::relay::RelayBuilder;
use oncebox::{
    Context, CrashPoint, Envelope, Failure, Handler, HandlerError, HandlerKey, Inbox, Outbox, Probe,
    Publisher, Relay, Result, Store, Subscriber,
};
use oncebox_conformance::path::scene::{HANDLER, Scene, entry};
use oncebox_conformance::sample::{DESTINATION, Posted};
use tokio::sync::{Notify, Semaphore};

use super::ground::Ground;

/// Longer than a relay's lease, by the scene's clock.
pub(super) const PAST_THE_LEASE: Duration = Duration::from_secs(31);
/// The group that consumes; the name `Scene` gives it.
pub(super) const GROUP: &str = "group";

/// Where somebody died.
#[derive(Clone, Default)]
pub(super) struct Deaths(Arc<Mutex<BTreeSet<CrashPoint>>>);

impl Deaths {
    pub(super) fn has(&self, point: CrashPoint) -> bool {
        self.0.lock().unwrap().contains(&point)
    }
}

/// A scene, and who died in it.
pub(super) struct Stage<F: Ground> {
    scene: Scene<F>,
    pub(super) deaths: Deaths,
}

impl<F: Ground> Deref for Stage<F> {
    type Target = Scene<F>;

    fn deref(&self) -> &Scene<F> {
        &self.scene
    }
}

impl<F: Ground> Stage<F> {
    pub(super) fn new(fixture: &Arc<F>) -> Self {
        Self { scene: Scene::new(fixture), deaths: Deaths::default() }
    }

    /// A probe that lets its owner die once, at the given visit of `point`.
    pub(super) fn dies_at(&self, point: CrashPoint, visit: usize) -> Probe {
        let (deaths, visits) = (self.deaths.clone(), AtomicUsize::new(0));
        Probe::new(move |reached| {
            let dies = reached == point && visits.fetch_add(1, Ordering::SeqCst) + 1 == visit;
            if dies {
                deaths.0.lock().unwrap().insert(point);
            }
            std::future::ready(if dies { Reaction::Crash } else { Reaction::Go })
        })
    }

    /// A business row and its message in one transaction, through `outbox`.
    pub(super) async fn place_order(&self, outbox: &Outbox<F::Store>, number: i64) -> Result<String> {
        let (fixture, message) = (Arc::clone(&self.fixture), order(number));
        outbox
            .transact(move |unit| {
                Box::pin(async move {
                    fixture.effect(unit.tx(), &business(number)).await?;
                    Ok(unit.put(&message).await?)
                })
            })
            .await
    }

    /// Expects the business row and the effect of an order.
    pub(super) fn expect(&self, number: i64, id: &str) {
        self.committed.lock().unwrap().extend([business(number), entry(HANDLER, id, &order(number))]);
    }

    /// A relay to a publisher of the case's own.
    pub(super) fn relay_to<P: Publisher>(&self, publisher: P) -> RelayBuilder<F::Store, P> {
        Relay::builder(self.store.clone(), publisher).clock(self.clock.clone())
    }

    /// A publisher that can die, and remembers what it sent.
    pub(super) fn mortal(&self, probe: Probe) -> Mortal {
        Mortal { inner: self.transport.clone(), probe, death: Arc::default(), sent: Arc::default() }
    }

    /// What a fresh process does after a death: a new inbox and a new relay on
    /// the same store, once the dead one's lease is over; then the ledger.
    pub(super) async fn recover(&self) {
        self.clock.advance(PAST_THE_LEASE);
        let consumer = self.consume_plainly().await;
        self.settle(&mut [self.relay()]).await;
        consumer.stop().await;
        self.check().await;
    }

    /// An inbox as another process has it: nothing in common but the database.
    pub(super) fn inbox_of(&self, store: F::Store, actor: Actor<F>, probe: Probe) -> Inbox<F::Store> {
        let swift = oncebox_conformance::path::scene::swift();
        let builder =
            Inbox::builder(store, DESTINATION).outbox(self.outbox.clone()).clock(self.clock.clone());
        builder.retry(swift).handler(actor).probe(probe).build().unwrap()
    }

    /// A handler that books, and then does as it is told.
    pub(super) fn actor(&self, act: impl Fn(usize) -> Act + Send + Sync + 'static) -> Actor<F> {
        Actor {
            fixture: Arc::clone(&self.fixture),
            act: Arc::new(act),
            runs: Arc::default(),
            attempts: Arc::default(),
            outside: Arc::default(),
        }
    }

    /// Commits an order and leaves it in the queue of the group, from where the
    /// feed in the answer delivers it.
    pub(super) async fn queued(&self, number: i64) -> MemoryFeed {
        let feed = self.transport.subscribe(DESTINATION, GROUP).await.unwrap();
        self.commit(&[order(number)]).await;
        // Nobody consumes yet, so no confirm comes.
        let mut relay = self.relay_builder().publish_timeout(Duration::from_millis(20)).build().unwrap();
        relay.step().await.unwrap();
        relay.release().await.unwrap();
        feed
    }
}

/// The message of an order.
pub(super) fn order(number: i64) -> Posted {
    Posted::on("red", number)
}

/// What the producer writes beside it.
pub(super) fn business(number: i64) -> oncebox_conformance::Entry {
    entry("business", &number.to_string(), &order(number))
}

/// Sends one message after the other and can die between any two of them (R7)
/// or after the last (R4). Who is dead neither answers nor goes on.
#[derive(Clone)]
pub(super) struct Mortal {
    inner: MemoryTransport,
    probe: Probe,
    death: Arc<Notify>,
    pub(super) sent: Arc<Mutex<Vec<String>>>,
}

impl Mortal {
    /// Runs `work` until it ends or this publisher dies; true if it died.
    pub(super) async fn outlives<T>(&self, work: impl Future<Output = T>) -> bool {
        tokio::select! {
            () = self.death.notified() => true,
            _ = work => false,
        }
    }

    pub(super) fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap().clone()
    }
}

impl Publisher for Mortal {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let mut results = Vec::new();
        for (place, envelope) in (1..).zip(batch) {
            self.sent.lock().unwrap().push(envelope.id.clone());
            results.extend(self.inner.publish(std::slice::from_ref(envelope)).await);
            let point = if place < batch.len() { CrashPoint::R7 } else { CrashPoint::R4 };
            if self.probe.reach(point).await.is_err() {
                self.death.notify_one();
                std::future::pending::<()>().await;
            }
        }
        results
    }
}

/// What a handler does after it has booked.
#[derive(Clone)]
pub(super) enum Act {
    Go,
    Fail,
    /// Meets a serialization failure.
    Contend,
    /// Swallows an error that dooms the transaction.
    Doom,
    /// Waits inside the transaction, then fails or goes.
    Hold {
        gate: Arc<Gate>,
        fails: bool,
    },
}

/// Where a handler waits for its case.
pub(super) struct Gate {
    entered: Semaphore,
    open: Semaphore,
}

impl Gate {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { entered: Semaphore::new(0), open: Semaphore::new(0) })
    }

    /// Says that somebody is here, and waits until the gate is opened.
    pub(super) async fn pass(&self) {
        self.entered.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }

    /// Waits until somebody is here.
    pub(super) async fn entered(&self) {
        self.entered.acquire().await.unwrap().forget();
    }

    /// Lets one through.
    pub(super) fn open(&self) {
        self.open.add_permits(1);
    }
}

/// Books a message, then acts. The act is chosen by how often it has run.
pub(super) struct Actor<F> {
    fixture: Arc<F>,
    act: Arc<dyn Fn(usize) -> Act + Send + Sync>,
    pub(super) runs: Arc<AtomicUsize>,
    /// The attempt of each run, as the delivery told it.
    pub(super) attempts: Arc<Mutex<Vec<u32>>>,
    /// What it did where no transaction reaches: the id of each call.
    pub(super) outside: Arc<Mutex<Vec<String>>>,
}

impl<F> Clone for Actor<F> {
    fn clone(&self) -> Self {
        Self {
            fixture: Arc::clone(&self.fixture),
            act: Arc::clone(&self.act),
            runs: Arc::clone(&self.runs),
            attempts: Arc::clone(&self.attempts),
            outside: Arc::clone(&self.outside),
        }
    }
}

impl<F: Ground> Handler<<F::Store as Store>::Tx> for Actor<F> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        self.attempts.lock().unwrap().push(cx.attempt());
        let id = cx.envelope().id.clone();
        self.outside.lock().unwrap().push(id.clone());
        self.fixture.effect(cx.tx(), &entry(HANDLER, &id, &message)).await?;
        match (self.act)(run) {
            Act::Go => Ok(()),
            Act::Fail => Err(HandlerError::retry("not this time")),
            Act::Contend => self.fixture.contend(cx.tx()).await,
            Act::Doom => {
                self.fixture.doom(cx.tx()).await;
                Ok(())
            }
            Act::Hold { gate, fails } => {
                gate.pass().await;
                if fails { Err(HandlerError::retry("not this time")) } else { Ok(()) }
            }
        }
    }
}
