//! A store around another one that hangs, fails or tells a wrong time on demand.

use std::error::Error as StdError;
use std::fmt;
use std::future::pending;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncebox_core::log::{ClaimRequest, Cursor, DueRow, LaneKey, Position, Settlement, Shard, Span, Window};
use oncebox_core::store::{Burial, Mark, Marked, Purge};
use oncebox_core::timestamp::micros;
use oncebox_core::{
    Dedup, Envelope, Error, Kind, Mailbox, Once, Result, Retention, Store, Timestamp, Transaction,
};

/// What can go wrong, by the name of the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Mailbox::read`].
    Read,
    /// [`Store::rollback`].
    Rollback,
    /// [`Dedup::leave`].
    Leave,
    /// [`Retention::purge`].
    Purge,
}

/// How it goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ail {
    /// It never answers.
    Hang,
    /// It says that the database cannot be reached.
    Fail,
}

#[derive(Default)]
struct Ails {
    next: Mutex<Vec<(Call, Ail)>>,
    skew: AtomicI64,
}

/// The store below, with its ails. Clones share them.
#[derive(Clone)]
pub struct AilingStore<S> {
    inner: S,
    ails: Arc<Ails>,
}

impl<S> fmt::Debug for AilingStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AilingStore").finish_non_exhaustive()
    }
}

impl<S> AilingStore<S> {
    /// A store that is well so far.
    pub fn new(inner: S) -> Self {
        Self { inner, ails: Arc::default() }
    }

    /// Lets this go wrong the next so many times.
    pub fn ail(&self, call: Call, ail: Ail, times: usize) {
        self.ails.next.lock().unwrap().extend(std::iter::repeat_n((call, ail), times));
    }

    /// Whether everything that was to go wrong has.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.ails.next.lock().unwrap().is_empty()
    }

    /// From here on the database's clock is this far ahead of the true one.
    pub fn jump(&self, ahead: Duration) {
        self.ails.skew.store(micros(ahead), Ordering::SeqCst);
    }

    async fn meet(&self, call: Call) -> Result<()> {
        let ail = {
            let mut next = self.ails.next.lock().unwrap();
            let found = next.iter().position(|(other, _)| *other == call);
            found.map(|index| next.remove(index).1)
        };
        match ail {
            None => Ok(()),
            Some(Ail::Hang) => pending().await,
            Some(Ail::Fail) => Err(Error::new(Kind::Unavailable, "the store ails")),
        }
    }

    /// What the database takes for now, if the caller leaves it to it.
    fn now(&self, now: Option<Timestamp>) -> Option<Timestamp> {
        let skew = self.ails.skew.load(Ordering::SeqCst);
        if skew == 0 || now.is_some() {
            return now;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Some(Timestamp::from_micros(micros(since) + skew))
    }
}

/// A transaction of the store below.
#[derive(Debug)]
pub struct AilingBegun<B>(B);

impl<B: Deref> Deref for AilingBegun<B> {
    type Target = B::Target;

    fn deref(&self) -> &B::Target {
        &self.0
    }
}

impl<B: DerefMut> DerefMut for AilingBegun<B> {
    fn deref_mut(&mut self) -> &mut B::Target {
        &mut self.0
    }
}

impl<S: Store, B: Transaction<S>> Transaction<AilingStore<S>> for AilingBegun<B> {
    fn connection(&mut self) -> &mut S::Tx {
        self.0.connection()
    }
}

impl<S: Store> Store for AilingStore<S> {
    type Tx = S::Tx;
    type Begun = AilingBegun<S::Begun>;

    async fn begin(&self) -> Result<Self::Begun> {
        self.inner.begin().await.map(AilingBegun)
    }

    async fn commit(&self, begun: Self::Begun) -> Result<()> {
        self.inner.commit(begun.0).await
    }

    async fn rollback(&self, begun: Self::Begun) -> Result<()> {
        self.meet(Call::Rollback).await?;
        self.inner.rollback(begun.0).await
    }

    async fn clock(&self, tx: &mut Self::Tx) -> Result<Timestamp> {
        let now = self.inner.clock(tx).await?;
        Ok(Timestamp::from_micros(now.micros() + self.ails.skew.load(Ordering::SeqCst)))
    }

    fn classify(&self, error: &(dyn StdError + 'static)) -> Option<Kind> {
        self.inner.classify(error)
    }
}

impl<S: Mailbox> Mailbox for AilingStore<S> {
    async fn put(&self, tx: &mut S::Tx, batch: &[Envelope], now: Option<Timestamp>) -> Result<Vec<Once>> {
        self.inner.put(tx, batch, self.now(now)).await
    }

    async fn holds(&self, envelope: &Envelope) -> Result<bool> {
        self.inner.holds(envelope).await
    }

    async fn promote(&self, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        self.inner.promote(limit, self.now(now)).await
    }

    async fn claim(&self, request: &ClaimRequest, now: Option<Timestamp>) -> Result<Vec<Cursor>> {
        self.inner.claim(request, self.now(now)).await
    }

    async fn read(&self, window: Window<'_>) -> Result<Span> {
        self.meet(Call::Read).await?;
        self.inner.read(window).await
    }

    async fn settle(&self, settlement: &Settlement, now: Option<Timestamp>) -> Result<()> {
        self.inner.settle(settlement, self.now(now)).await
    }

    async fn due(
        &self,
        sink: &str,
        shards: &[Shard],
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<DueRow>> {
        self.inner.due(sink, shards, limit, self.now(now)).await
    }

    async fn blocked(&self, sink: &str, shards: &[Shard], skip_dead: bool) -> Result<Vec<LaneKey>> {
        self.inner.blocked(sink, shards, skip_dead).await
    }

    async fn release(&self, sink: &str, holder: &str) -> Result<()> {
        self.inner.release(sink, holder).await
    }

    async fn requeue(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        self.inner.requeue(sink, position, self.now(now)).await
    }

    async fn discard(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        self.inner.discard(sink, position, self.now(now)).await
    }
}

impl<S: Dedup> Dedup for AilingStore<S> {
    async fn mark(&self, tx: &mut S::Tx, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<Marked> {
        self.inner.mark(tx, mark, self.now(now)).await
    }

    async fn enter(&self, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<u32> {
        self.inner.enter(mark, self.now(now)).await
    }

    async fn leave(&self, tx: &mut S::Tx, mark: &Mark<'_>) -> Result<()> {
        self.meet(Call::Leave).await?;
        self.inner.leave(tx, mark).await
    }

    async fn reply(&self, tx: &mut S::Tx, mark: &Mark<'_>, result: &[u8]) -> Result<()> {
        self.inner.reply(tx, mark, result).await
    }

    async fn bury(&self, burial: &Burial<'_>, now: Option<Timestamp>) -> Result<()> {
        self.inner.bury(burial, self.now(now)).await
    }
}

impl<S: Retention> Retention for AilingStore<S> {
    async fn purge(&self, purge: &Purge, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        self.meet(Call::Purge).await?;
        self.inner.purge(purge, limit, self.now(now)).await
    }

    async fn hold_broom(&self, holder: &str, lease: Duration, now: Option<Timestamp>) -> Result<bool> {
        self.inner.hold_broom(holder, lease, now).await
    }
}
