//! Durable mode, first half: a message is stored for its handlers before it is
//! acknowledged.
//!
//! Deliveries that arrive while a deposit commits are stored together by the
//! next one, in the order in which they were enlisted: the busier the channel,
//! the larger the batch. When a large batch waits and nothing in it is in
//! order, it does not wait for the one before: see `queue`.

mod queue;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use oncebox_core::depot::{Assigned, Assignment, Deposit, Deposited};
use oncebox_core::handler::MessageKey;
use oncebox_core::plan::OnDead;
use oncebox_core::store::{Dedup, Mailbox};
use oncebox_core::{Depot, Envelope, Error, HandlerKey, Kind, Outcome, Result, Verdict};
use tokio::sync::{Mutex as Turn, oneshot};

use super::handler::{Erased, Mode};
use super::receive::message_key;
use super::{Inbox, Inner};
use crate::chance;
use crate::clock::Clock;
use crate::crash::CrashPoint;
use crate::shield::Shield;
use crate::telemetry;
use queue::{Counter, Taken};

/// A message that waits to be stored.
pub(super) struct Entry {
    scope: String,
    channel: String,
    envelope: Envelope,
    shares: Vec<Share>,
    answer: oneshot::Sender<Result<Deposited>>,
}

/// One handler's share of it.
pub(super) struct Share {
    handler: HandlerKey,
    marker: String,
    key: MessageKey,
    lane: Option<String>,
    window: Option<std::time::Duration>,
    refused: Option<(&'static str, String)>,
    frees_lane: bool,
}

impl Share {
    pub(super) fn assignment(&self) -> Assignment<'_> {
        Assignment {
            handler: self.handler.as_str(),
            marker: &self.marker,
            key: self.key.clone(),
            lane: self.lane.as_deref(),
            window: self.window,
            refused: self.refused.as_ref().map(|(code, reason)| (*code, reason.as_str())),
            frees_lane: self.frees_lane,
        }
    }
}

/// What is known of a delivery before anything is awaited.
pub(crate) struct Intake {
    pub(super) forged: Option<String>,
    pub(super) enlisted: Option<Enlisted>,
}

/// A message in the queue of those to be stored.
pub(super) struct Enlisted {
    answer: oneshot::Receiver<Result<Deposited>>,
    handlers: Vec<HandlerKey>,
}

/// Where durable handlers' messages are stored, whatever the store.
pub(super) trait Deposits: Send + Sync {
    fn enlist(&self, entry: Entry);
    /// Stores what is enlisted, in order, until this answer is there.
    fn settle<'a>(
        &'a self,
        answer: &'a mut oneshot::Receiver<Result<Deposited>>,
    ) -> BoxFuture<'a, Result<Deposited>>;
}

pub(super) struct Depositor<S> {
    store: S,
    clock: Clock,
    counter: Arc<Counter>,
    /// Held by whoever takes the next batch, until it is taken.
    turn: Turn<()>,
}

impl<S: Depot> Depositor<S> {
    pub(super) fn make(store: S, clock: Clock) -> Arc<dyn Deposits> {
        Arc::new(Self { store, clock, counter: Arc::default(), turn: Turn::default() })
    }

    async fn next_batch(&self) -> Taken {
        let _turn = self.turn.lock().await;
        self.counter.next_batch().await
    }
}

impl<S: Depot> Deposits for Depositor<S> {
    fn enlist(&self, entry: Entry) {
        self.counter.push(entry);
    }

    fn settle<'a>(
        &'a self,
        answer: &'a mut oneshot::Receiver<Result<Deposited>>,
    ) -> BoxFuture<'a, Result<Deposited>> {
        Box::pin(async move {
            loop {
                // Those that are answered leave at once, and not one after the other
                // when it is their turn: the next batch would wait for all of them.
                let batch = tokio::select! {
                    biased;
                    deposited = &mut *answer => {
                        let given_up = || Error::new(Kind::Unavailable, "the deposit was given up");
                        return deposited.map_err(|_closed| given_up())?;
                    }
                    batch = self.next_batch() => batch,
                };
                let (store, clock) = (self.store.clone(), self.clock.clone());
                // Others wait for it: it goes on if this caller goes away.
                Shield::new(async move { store_all(&store, &clock, batch).await }).await;
            }
        })
    }
}

/// Stores a batch, or, if something in it is refused, each message by itself.
async fn store_all<S: Depot>(store: &S, clock: &Clock, mut taken: Taken) {
    let batch = std::mem::take(&mut taken.batch);
    if batch.is_empty() {
        return;
    }
    match deposit(store, clock, &batch).await {
        Ok(deposited) => {
            for (entry, deposited) in batch.into_iter().zip(deposited) {
                entry.answer.send(Ok(deposited)).ok();
            }
        }
        Err(error) if error.kind().is_transient() || batch.len() < 2 => {
            for entry in batch {
                entry.answer.send(Err(Error::new(error.kind(), error.chain()))).ok();
            }
        }
        Err(_one_of_them) => {
            for entry in batch {
                let alone = deposit(store, clock, std::slice::from_ref(&entry)).await;
                let missing = || Error::new(Kind::Corrupt, "the store did not answer for the message");
                let deposited = alone.and_then(|mut answers| answers.pop().ok_or_else(missing));
                entry.answer.send(deposited).ok();
            }
        }
    }
}

async fn deposit<S: Depot>(store: &S, clock: &Clock, batch: &[Entry]) -> Result<Vec<Deposited>> {
    let deposits: Vec<Deposit<'_>> = batch
        .iter()
        .map(|entry| Deposit {
            scope: &entry.scope,
            channel: &entry.channel,
            envelope: &entry.envelope,
            assignments: entry.shares.iter().map(Share::assignment).collect(),
        })
        .collect();
    let mut begun = store.begin().await?;
    match store.deposit(&mut begun, &deposits, clock.now()).await {
        Ok(deposited) => {
            store.commit_sound(begun, false).await?;
            Ok(deposited)
        }
        Err(error) => {
            store.rollback(begun).await.ok();
            Err(error)
        }
    }
}

impl<S: Mailbox + Dedup> Inner<S> {
    /// What a durable handler gets of a message.
    pub(super) fn share(&self, handler: &dyn Erased<S>, envelope: &Envelope) -> Share {
        let (key, refused) = match message_key(handler, envelope, &envelope.digest()) {
            Ok(Some(key)) => (key, None),
            // Told apart from nothing: every copy is one of its own.
            Ok(None) => (MessageKey::business(&chance::message_id()), None),
            Err(Outcome::Refused { code, reason }) => (fallback(envelope), Some((code, reason))),
            Err(_other) => (fallback(envelope), None),
        };
        let is_ordered = handler.options().lanes.is_some();
        Share {
            handler: handler.key(),
            marker: self.marker(handler.key()).into_owned(),
            key,
            lane: envelope.key.clone().filter(|_| is_ordered),
            window: self.window(handler),
            refused,
            frees_lane: handler.options().lanes == Some(OnDead::SkipKey),
        }
    }
}

/// The key of a message that no handler's own key could be made for.
fn fallback(envelope: &Envelope) -> MessageKey {
    let id = if envelope.id.is_empty() { envelope.digest().to_string() } else { envelope.id.clone() };
    MessageKey::business(&format!("{}/{id}", envelope.source))
}

impl<S: Mailbox + Dedup> Inbox<S> {
    /// Queues a message to be stored, so that messages of a lane are stored in
    /// the order of these calls.
    pub(crate) fn enlist(&self, envelope: &Envelope) -> Intake {
        let forged = self.forged(envelope);
        let inner = &self.inner;
        let Some(deposits) = inner.deposits.as_ref().filter(|_| forged.is_none()) else {
            return Intake { forged, enlisted: None };
        };
        let durable = inner.handlers_of(envelope, Mode::Durable);
        let shares: Vec<Share> = durable.map(|handler| inner.share(handler.as_ref(), envelope)).collect();
        if shares.is_empty() {
            return Intake { forged, enlisted: None };
        }
        let handlers = shares.iter().map(|share| share.handler).collect();
        let (sender, answer) = oneshot::channel();
        let (scope, channel) = (inner.scope.clone(), inner.channel.clone());
        deposits.enlist(Entry { scope, channel, envelope: envelope.clone(), shares, answer: sender });
        Intake { forged, enlisted: Some(Enlisted { answer, handlers }) }
    }

    /// Waits until the message is stored; the verdict is the answer for it.
    pub(super) async fn stored(&self, mut enlisted: Enlisted, envelope: &Envelope, attempt: u32) -> Verdict {
        let inner = &self.inner;
        let again = Verdict::Retry { after: inner.options.retry.busy_delay, spent: false };
        let Some(deposits) = &inner.deposits else { return again };
        let verdict = match deposits.settle(&mut enlisted.answer).await {
            Ok(Deposited::Stored { assigned, .. }) => {
                telemetry::deposited("stored");
                inner.stored.hint();
                let known = enlisted.handlers.iter().zip(&assigned);
                for (handler, _) in known.filter(|(_, a)| **a == Assigned::Duplicate) {
                    inner.observe(*handler, envelope, &Outcome::Duplicate { result: None });
                }
                let conflicts =
                    enlisted.handlers.iter().zip(assigned).filter(|(_, a)| *a == Assigned::Conflict);
                let mut verdict = Verdict::Done;
                for (handler, _) in conflicts {
                    let buried = self.conflict(handler.as_str(), envelope, attempt).await;
                    verdict = super::sooner(verdict, buried);
                }
                verdict
            }
            Ok(Deposited::Duplicate) => {
                telemetry::deposited("duplicate");
                for handler in &enlisted.handlers {
                    inner.observe(*handler, envelope, &Outcome::Duplicate { result: None });
                }
                Verdict::Done
            }
            Ok(Deposited::Conflict) => self.conflict("", envelope, attempt).await,
            Err(error) => {
                telemetry::deposited("unavailable");
                tracing::warn!(id = envelope.id, error = error.chain(), "inbox.deposit_failed");
                again.clone()
            }
        };
        if inner.probe.reach(CrashPoint::D1).await.is_err() { again } else { verdict }
    }

    async fn conflict(&self, handler: &str, envelope: &Envelope, attempt: u32) -> Verdict {
        telemetry::deposited("conflict");
        let reason = "another body was stored under the same key".to_owned();
        self.settled(handler, Verdict::Dead { code: "id_conflict", reason }, envelope, attempt).await
    }
}
