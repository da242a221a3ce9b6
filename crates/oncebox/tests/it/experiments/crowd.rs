//! What F08, F09 and F15 share: messages by number, a handler that is watched
//! while it books them, and deliveries many at a time.

use std::sync::Arc;

use oncebox::store::{Dedup, Mailbox};
use oncebox::{Context, Envelope, Handler, HandlerError, HandlerKey, Inbox, Store};
use oncebox_conformance::sample::Posted;
use oncebox_conformance::{Entry, Findings, Ledger, StoreFixture};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::bodies::{Bodies, HANDLER, arriving, deliver_until_done, effect};

/// Messages `m-0` and on, each without a key.
pub(super) struct Crowd(Vec<(String, Posted)>);

impl Crowd {
    pub(super) fn of(count: usize) -> Self {
        Self((0..count).map(|n| (format!("m-{n}"), Posted::unkeyed(i64::try_from(n).unwrap()))).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The messages from here on as a crowd of their own.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        Self(self.0.split_off(at))
    }

    /// Each message as it arrives.
    pub(super) fn arriving(&self) -> impl Iterator<Item = Envelope> {
        self.0.iter().map(|(id, message)| arriving(id, message))
    }

    /// The effects all of them must have.
    pub(super) fn effects(&self) -> Vec<Entry> {
        self.0.iter().map(|(id, message)| effect(id, message)).collect()
    }

    /// What is wrong with the fixture's ledger after all of them.
    pub(super) async fn findings<F: StoreFixture>(&self, fixture: &F) -> Findings {
        Ledger::check(&self.effects(), &fixture.effects().await)
    }

    /// Delivers each of them, `at_once` at a time, and waits for all.
    pub(super) async fn deliver<Fut>(&self, at_once: usize, deliver: impl Fn(Envelope) -> Fut)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let (seats, mut deliveries) = (Arc::new(Semaphore::new(at_once)), JoinSet::new());
        for envelope in self.arriving() {
            let (seats, delivery) = (Arc::clone(&seats), deliver(envelope));
            deliveries.spawn(async move {
                let _seat = seats.acquire_owned().await.unwrap();
                delivery.await;
            });
        }
        deliveries.join_all().await;
    }
}

/// Delivers copies of one message at the same moment, to one inbox after the
/// other, until all are done.
pub(super) async fn deliver_copies<S: Mailbox + Dedup>(
    inboxes: Vec<Inbox<S>>,
    envelope: Envelope,
    count: usize,
) {
    let mut copies = JoinSet::new();
    for inbox in inboxes.iter().cycle().take(count) {
        let (inbox, envelope) = (inbox.clone(), envelope.clone());
        copies.spawn(async move { deliver_until_done(&inbox, &envelope).await });
    }
    copies.join_all().await;
}

/// What an experiment adds to the body of its handler.
pub(super) trait Twist<F: StoreFixture>: Send + Sync + 'static {
    /// Whether the body does nothing this time and answers that all is well.
    fn shirks(&self) -> bool {
        false
    }

    /// What happens once the booking is written; `run` counts from 1.
    fn after(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        number: usize,
        run: usize,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Books each message under the eyes of [`Bodies`].
pub(super) struct Watched<F, T> {
    fixture: Arc<F>,
    bodies: Bodies,
    twist: T,
}

impl<F, T> Watched<F, T> {
    pub(super) fn new(fixture: &Arc<F>, bodies: &Bodies, twist: T) -> Self {
        Self { fixture: Arc::clone(fixture), bodies: bodies.clone(), twist }
    }
}

impl<F: StoreFixture, T: Twist<F>> Handler<<F::Store as Store>::Tx> for Watched<F, T> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        let id = cx.envelope().id.clone();
        let _body = self.bodies.enter(&id, cx.attempt());
        if self.twist.shirks() {
            return Ok(());
        }
        self.fixture.effect(cx.tx(), &effect(&id, &message)).await?;
        let number = usize::try_from(message.sequence)?;
        self.twist.after(cx, number, self.bodies.runs_of(&id)).await
    }
}
