//! A producer's whole transaction, run so that neither a hang-up nor a lost
//! COMMIT leaves its fate in doubt.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox_core::{Envelope, Error, HandlerError, Kind, Mailbox, Message, Result, Transaction};

use super::Outbox;
use crate::crash::CrashPoint;
use crate::shield::Shield;

/// How often an unknown commit is looked up before it is reported as unknown.
const LOOKUPS: u32 = 5;

/// An open transaction together with the outbox it puts into.
#[derive(Debug)]
pub struct Unit<S: Mailbox> {
    begun: S::Begun,
    outbox: Outbox<S>,
    witness: Option<Envelope>,
}

impl<S: Mailbox> Unit<S> {
    /// The connection, for the business writes.
    pub fn tx(&mut self) -> &mut S::Tx {
        &mut self.begun
    }

    /// Puts a message into this transaction.
    ///
    /// # Errors
    /// As [`Outbox::put`].
    pub async fn put<M: Message>(&mut self, message: &M) -> Result<String> {
        self.outbox.probe.reach(CrashPoint::P2).await?;
        let mut envelope = self.outbox.envelope(message)?;
        self.outbox.complete_routed(&mut envelope)?;
        let ids = self.outbox.insert(&mut self.begun, vec![envelope.clone()]).await?;
        self.witness = Some(envelope);
        ids.into_iter().next().ok_or_else(|| Error::new(Kind::Corrupt, "the store took no message"))
    }
}

impl<S: Mailbox> Transaction<S> for Unit<S> {
    fn connection(&mut self) -> &mut S::Tx {
        &mut self.begun
    }
}

impl<S: Mailbox> Outbox<S> {
    /// Runs `work` in a transaction of its own and commits it.
    ///
    /// Dropping this future (a client that hangs up) neither stops the work
    /// half-way nor leaves a connection inside an open transaction. If the connection breaks during COMMIT, the last
    /// message put through [`Unit::put`] is looked up until the outcome is known.
    ///
    /// # Errors
    /// With the work's own error as source, by its kind or [`Kind::Rejected`];
    /// nothing was committed. [`Kind::CommitUnknown`] if the outcome could not be found
    /// out. Otherwise by kind; nothing was committed.
    pub async fn transact<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'u> FnOnce(&'u mut Unit<S>) -> BoxFuture<'u, Result<T, HandlerError>> + Send + 'static,
    {
        let outbox = self.clone();
        let run =
            Shield::new(AssertUnwindSafe(async move { outbox.transact_here(work).await }).catch_unwind());
        run.await.unwrap_or_else(|_panic| {
            Err(Error::new(Kind::Rejected, "the work panicked; nothing was committed"))
        })
    }

    async fn transact_here<T, F>(self, work: F) -> Result<T>
    where
        F: for<'u> FnOnce(&'u mut Unit<S>) -> BoxFuture<'u, Result<T, HandlerError>> + Send,
    {
        self.probe.reach(CrashPoint::P1).await?;
        let begun = self.store.begin().await?;
        let mut unit = Unit { begun, outbox: self.clone(), witness: None };
        let value = match work(&mut unit).await {
            Ok(value) => value,
            Err(error) => {
                let kind = self.store.classify(error.cause()).unwrap_or(Kind::Rejected);
                self.store.rollback(unit.begun).await.ok();
                return Err(
                    Error::new(kind, "the work failed; nothing was committed").because(error.into_cause())
                );
            }
        };
        self.probe.reach(CrashPoint::P3).await?;
        match self.store.commit(unit.begun).await {
            Err(error) if error.kind() == Kind::CommitUnknown => self.resolve(unit.witness, error).await?,
            other => other?,
        }
        self.probe.reach(CrashPoint::P4).await?;
        self.probe.reach(CrashPoint::P5).await?;
        self.wakeup.hint();
        Ok(value)
    }

    async fn resolve(&self, witness: Option<Envelope>, unknown: Error) -> Result<()> {
        let Some(witness) = witness else { return Err(unknown) };
        for _ in 0..LOOKUPS {
            match self.store.holds(&witness).await {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    let text = "the connection broke before the commit; nothing was committed";
                    return Err(Error::new(Kind::Unavailable, text).because(unknown));
                }
                Err(error) => tracing::debug!(kind = error.kind().name(), "commit outcome still unknown"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        Err(unknown)
    }
}
