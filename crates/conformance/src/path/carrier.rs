//! What carries the messages of a scene, and how one knows that they are all there.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox_core::log::LaneKey;
use oncebox_core::{Acknowledge, Delivery, Envelope, Failure, Feed, Publisher, Result, Subscriber};

/// A transport in both directions.
pub trait Carrier: Publisher + Subscriber + Clone {}

impl<T: Publisher + Subscriber + Clone> Carrier for T {}

/// What has been answered for this long without anything coming after it is all there is.
const QUIET: Duration = Duration::from_millis(50);
/// Whatever a broker has confirmed is handled by then, retries included.
const PATIENCE: Duration = Duration::from_secs(30);

/// A message by where it goes and what it is called there.
type Name = (String, String, String, String);

fn name(envelope: &Envelope) -> Name {
    let Envelope { destination, tenant, source, id, .. } = envelope;
    (destination.clone(), tenant.clone(), source.clone(), id.clone())
}

/// Sees what was confirmed and what was acknowledged: a broker confirms what
/// no consumer has seen yet, and a case that looks then sees too little.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    confirmed: HashSet<Name>,
    acknowledged: HashSet<Name>,
    last: Option<Instant>,
}

impl Watch {
    fn note(&self, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.0.lock().unwrap();
        seen.last = Some(Instant::now());
        change(&mut seen);
    }

    /// Whether all that was confirmed was acknowledged, and nothing more comes.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let seen = self.0.lock().unwrap();
        seen.confirmed.is_subset(&seen.acknowledged) && seen.last.is_none_or(|last| last.elapsed() > QUIET)
    }

    /// Waits until it is quiet, but not for ever.
    pub async fn quiet(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_quiet() {
            assert!(Instant::now() < deadline, "confirmed and never acknowledged: {:?}", self.missing());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn missing(&self) -> Vec<Name> {
        let seen = self.0.lock().unwrap();
        seen.confirmed.difference(&seen.acknowledged).cloned().collect()
    }
}

/// A feed that tells the watch.
pub struct WatchedFeed<F> {
    pub(super) inner: F,
    pub(super) watch: Watch,
}

impl<F: Feed> Feed for WatchedFeed<F> {
    type Ack = WatchedAck<F::Ack>;

    async fn next(&mut self) -> Result<Option<Delivery<Self::Ack>>> {
        let delivery = self.inner.next().await?;
        Ok(delivery.map(|Delivery { envelope, attempt, ack }| {
            self.watch.note(|_| ());
            let ack = WatchedAck { inner: ack, watch: self.watch.clone(), name: name(&envelope) };
            Delivery { envelope, attempt, ack }
        }))
    }
}

/// An answer that tells the watch.
pub struct WatchedAck<A> {
    inner: A,
    watch: Watch,
    name: Name,
}

impl<A: Acknowledge> Acknowledge for WatchedAck<A> {
    fn ack(self) -> impl Future<Output = Result<()>> + Send {
        let Self { inner, watch, name } = self;
        // Some transports answer at the call.
        let acked = inner.ack();
        async move {
            acked.await?;
            watch.note(|seen| _ = seen.acknowledged.insert(name));
            Ok(())
        }
    }

    fn nack(self, after: Duration, spent: bool) -> impl Future<Output = Result<()>> + Send {
        self.watch.note(|_| ());
        self.inner.nack(after, spent)
    }
}

type Refuse = dyn Fn(&Envelope) -> Option<Failure> + Send + Sync;

/// A transport that refuses what it is told to, and may forget to confirm.
#[derive(Clone)]
pub struct Picky<T> {
    inner: T,
    watch: Watch,
    refused: Arc<Mutex<Option<Box<Refuse>>>>,
    lost_confirms: Arc<Mutex<usize>>,
}

impl<T> Picky<T> {
    pub(super) fn new(inner: T, watch: Watch) -> Self {
        Self { inner, watch, refused: Arc::default(), lost_confirms: Arc::default() }
    }

    /// Refuses from here on what `refuse` says.
    pub fn refuse(&self, refuse: impl Fn(&Envelope) -> Option<Failure> + Send + Sync + 'static) {
        *self.refused.lock().unwrap() = Some(Box::new(refuse));
    }

    /// Refuses nothing any more.
    pub fn accept_all(&self) {
        *self.refused.lock().unwrap() = None;
    }

    /// Passes the next `count` messages on and says that nobody knows.
    pub fn lose_confirms(&self, count: usize) {
        *self.lost_confirms.lock().unwrap() = count;
    }

    fn judge(&self, batch: &[Envelope]) -> Vec<Option<Failure>> {
        let refused = self.refused.lock().unwrap();
        let Some(refuse) = refused.as_ref() else { return vec![None; batch.len()] };
        let mut halted: HashSet<LaneKey> = HashSet::new();
        let judge = |envelope: &Envelope| {
            let lane = LaneKey::of(envelope);
            if lane.as_ref().is_some_and(|lane| halted.contains(lane)) {
                return Some(Failure::unknown("an earlier message of its key was refused"));
            }
            let failure = refuse(envelope);
            halted.extend(lane.filter(|_| failure.is_some()));
            failure
        };
        batch.iter().map(judge).collect()
    }

    /// What is told of a message the transport has answered for.
    fn tell(&self, envelope: &Envelope, answer: Result<(), Failure>) -> Result<(), Failure> {
        if answer.is_ok() {
            self.watch.note(|seen| _ = seen.confirmed.insert(name(envelope)));
        }
        let mut lost = self.lost_confirms.lock().unwrap();
        if answer.is_ok() && *lost > 0 {
            *lost -= 1;
            return Err(Failure::unknown("confirm lost"));
        }
        answer
    }
}

impl<T: Publisher> Publisher for Picky<T> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let judged = self.judge(batch);
        let accepted = batch.iter().zip(&judged).filter(|(_, failure)| failure.is_none());
        let accepted: Vec<Envelope> = accepted.map(|(envelope, _)| envelope.clone()).collect();
        let sent = self.inner.publish(&accepted).await;
        let mut told = accepted.iter().zip(sent).map(|(envelope, answer)| self.tell(envelope, answer));
        judged.into_iter().map(|failure| failure.map_or_else(|| told.next().unwrap(), Err)).collect()
    }
}
