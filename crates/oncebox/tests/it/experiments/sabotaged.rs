//! A store that keeps its promises, or breaks one of them on purpose.
//!
//! An experiment runs through this wrapper in both of its forms, so that the
//! check that holds for the honest one is the very check that must fail for
//! the sabotaged one.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::gate::{Admission, AdmitRequest, Pass, Receipts, Reply};
use oncebox::handler::MessageKey;
use oncebox::log::{ClaimRequest, Cursor, DueRow, LaneKey, Position, Settlement, Shard, Span, Window};
use oncebox::store::{Burial, Mark, Marked};
use oncebox::{Dedup, Digest, Envelope, Error, Kind, Mailbox, Once, Result, Store, Timestamp, Transaction};

/// What the wrapper does to the store below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nothing.
    Honest,
    /// Every body runs first; its marker is written at the commit.
    MarkLast,
    /// Ids are trimmed and lower-cased, as a careless collation would compare them.
    FoldIds,
    /// A commit whose answer was lost is taken for a rollback.
    GuessCommits,
    /// Positions that may still be filled are passed for good, as a plain id cursor does.
    ForgetHoles,
}

/// A mark that outlives the call it came in.
struct Kept {
    tenant: String,
    handler: String,
    key: MessageKey,
    digest: Digest,
    time: Option<Timestamp>,
    window: Option<Duration>,
    now: Option<Timestamp>,
}

/// The wrapper. One unit of an inbox runs in one task from mark to commit, so
/// that the task tells which mark belongs to which commit.
#[derive(Clone)]
pub(super) struct Sabotaged<S> {
    inner: S,
    mode: Mode,
    kept: Arc<Mutex<HashMap<tokio::task::Id, Kept>>>,
}

impl<S> Sabotaged<S> {
    pub(super) fn new(inner: S, mode: Mode) -> Self {
        Self { inner, mode, kept: Arc::default() }
    }
}

/// The open transaction of the store below.
pub(super) struct Opened<S: Store>(S::Begun);

impl<S: Store> Deref for Opened<S> {
    type Target = S::Tx;

    fn deref(&self) -> &S::Tx {
        &self.0
    }
}

impl<S: Store> DerefMut for Opened<S> {
    fn deref_mut(&mut self) -> &mut S::Tx {
        &mut self.0
    }
}

impl<S: Dedup> Transaction<Sabotaged<S>> for Opened<S> {
    fn connection(&mut self) -> &mut S::Tx {
        &mut self.0
    }
}

impl<S: Dedup> Store for Sabotaged<S> {
    type Tx = S::Tx;
    type Begun = Opened<S>;

    async fn begin(&self) -> Result<Opened<S>> {
        self.inner.begin().await.map(Opened)
    }

    async fn commit(&self, mut begun: Opened<S>) -> Result<()> {
        let kept = tokio::task::try_id().and_then(|task| self.kept.lock().unwrap().remove(&task));
        if let Some(kept) = kept {
            let mark = Mark {
                tenant: &kept.tenant,
                handler: &kept.handler,
                key: &kept.key,
                digest: kept.digest,
                time: kept.time,
                window: kept.window,
            };
            if self.inner.mark(&mut begun, &mark, kept.now).await? != Marked::First {
                return self.inner.rollback(begun.0).await;
            }
        }
        let committed = self.inner.commit(begun.0).await;
        let is_guessed = self.mode == Mode::GuessCommits;
        committed.map_err(|error| match error.kind() {
            Kind::CommitUnknown if is_guessed => {
                Error::new(Kind::Rejected, "surely rolled back").because(error)
            }
            _ => error,
        })
    }

    async fn rollback(&self, begun: Opened<S>) -> Result<()> {
        self.inner.rollback(begun.0).await
    }

    async fn clock(&self, tx: &mut S::Tx) -> Result<Timestamp> {
        self.inner.clock(tx).await
    }

    fn classify(&self, error: &(dyn StdError + 'static)) -> Option<Kind> {
        self.inner.classify(error)
    }
}

impl<S: Dedup> Dedup for Sabotaged<S> {
    async fn mark(&self, tx: &mut S::Tx, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<Marked> {
        match self.mode {
            Mode::Honest | Mode::GuessCommits | Mode::ForgetHoles => self.inner.mark(tx, mark, now).await,
            Mode::MarkLast => {
                let kept = Kept {
                    tenant: mark.tenant.into(),
                    handler: mark.handler.into(),
                    key: mark.key.clone(),
                    digest: mark.digest,
                    time: mark.time,
                    window: mark.window,
                    now,
                };
                self.kept.lock().unwrap().insert(tokio::task::id(), kept);
                Ok(Marked::First)
            }
            Mode::FoldIds => {
                let key = MessageKey { source: mark.key.source.clone(), id: folded(&mark.key.id) };
                self.inner.mark(tx, &Mark { key: &key, ..mark.clone() }, now).await
            }
        }
    }

    async fn reply(&self, tx: &mut S::Tx, mark: &Mark<'_>, result: &[u8]) -> Result<()> {
        self.inner.reply(tx, mark, result).await
    }

    async fn enter(&self, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<u32> {
        self.inner.enter(mark, now).await
    }

    async fn leave(&self, tx: &mut S::Tx, mark: &Mark<'_>) -> Result<()> {
        self.inner.leave(tx, mark).await
    }

    async fn bury(&self, burial: &Burial<'_>, now: Option<Timestamp>) -> Result<()> {
        self.inner.bury(burial, now).await
    }
}

fn folded(id: &str) -> String {
    id.trim().to_lowercase()
}

impl<S: Mailbox + Dedup> Mailbox for Sabotaged<S> {
    async fn put(&self, tx: &mut S::Tx, batch: &[Envelope], now: Option<Timestamp>) -> Result<Vec<Once>> {
        if self.mode != Mode::FoldIds {
            return self.inner.put(tx, batch, now).await;
        }
        let fold = |envelope: &Envelope| Envelope { id: folded(&envelope.id), ..envelope.clone() };
        self.inner.put(tx, &batch.iter().map(fold).collect::<Vec<_>>(), now).await
    }

    async fn holds(&self, envelope: &Envelope) -> Result<bool> {
        self.inner.holds(envelope).await
    }

    async fn promote(&self, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        self.inner.promote(limit, now).await
    }

    async fn claim(&self, request: &ClaimRequest, now: Option<Timestamp>) -> Result<Vec<Cursor>> {
        self.inner.claim(request, now).await
    }

    async fn read(&self, window: Window<'_>) -> Result<Span> {
        let span = self.inner.read(window).await?;
        Ok(if self.mode == Mode::ForgetHoles { Span { holes: Vec::new(), ..span } } else { span })
    }

    async fn settle(&self, settlement: &Settlement, now: Option<Timestamp>) -> Result<()> {
        self.inner.settle(settlement, now).await
    }

    async fn due(
        &self,
        sink: &str,
        shards: &[Shard],
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<DueRow>> {
        self.inner.due(sink, shards, limit, now).await
    }

    async fn blocked(&self, sink: &str, shards: &[Shard], skip_dead: bool) -> Result<Vec<LaneKey>> {
        self.inner.blocked(sink, shards, skip_dead).await
    }

    async fn release(&self, sink: &str, holder: &str) -> Result<()> {
        self.inner.release(sink, holder).await
    }

    async fn requeue(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        self.inner.requeue(sink, position, now).await
    }

    async fn discard(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        self.inner.discard(sink, position, now).await
    }
}

impl<S: Dedup + Receipts> Receipts for Sabotaged<S> {
    async fn admit(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Result<Admission> {
        self.inner.admit(request, now).await
    }

    async fn admit_in(
        &self,
        tx: &mut S::Tx,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Admission> {
        self.inner.admit_in(tx, request, now).await
    }

    async fn peek(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Result<Option<Admission>> {
        self.inner.peek(request, now).await
    }

    async fn prolong(&self, passes: &[Pass], lease: Duration, now: Option<Timestamp>) -> Result<Vec<bool>> {
        self.inner.prolong(passes, lease, now).await
    }

    async fn seal(&self, pass: &Pass, reply: &Reply) -> Result<()> {
        self.inner.seal(pass, reply).await
    }

    async fn seal_in(&self, tx: &mut S::Tx, pass: &Pass, reply: &Reply) -> Result<()> {
        self.inner.seal_in(tx, pass, reply).await
    }

    async fn withdraw(&self, pass: &Pass) -> Result<()> {
        self.inner.withdraw(pass).await
    }

    async fn doubt(&self, pass: &Pass) -> Result<()> {
        self.inner.doubt(pass).await
    }

    async fn count(&self, scope: &[u8; 32], limit: usize) -> Result<usize> {
        self.inner.count(scope, limit).await
    }

    async fn forget(&self, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        self.inner.forget(limit, now).await
    }
}
