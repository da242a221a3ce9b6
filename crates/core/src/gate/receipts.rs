//! The gate's seam to the database.

use std::future::Future;
use std::time::Duration;

use super::receipt::{Admission, AdmitRequest, Claiming, Pass};
use super::reply::Reply;
use crate::error::Result;
use crate::store::Store;
use crate::timestamp::Timestamp;

/// Keeps receipts. `now` is as everywhere: `None` is the database's clock.
pub trait Receipts: Store {
    /// Whether receipts are in this process already: a cache before them would only hold them twice.
    const IN_MEMORY: bool = false;

    /// Admits a request, or tells what became of the one before it, as
    /// [`judge`](super::receipt::judge) has it. Durable when it returns.
    ///
    /// # Errors
    /// [`Kind::Busy`](crate::Kind::Busy) if a transaction that is about to
    /// decide the key takes longer than the lock timeout.
    fn admit(
        &self,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Admission>> + Send;

    /// As [`admit`](Self::admit), in the caller's transaction: until it commits, nobody else is admitted.
    ///
    /// # Errors
    /// As there.
    fn admit_in(
        &self,
        tx: &mut Self::Tx,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Admission>> + Send;

    /// Begins a transaction and admits the request in it, in as few round trips
    /// as the store can. Cancel safe, as [`begin`](Store::begin) is.
    ///
    /// # Errors
    /// As [`begin`](Store::begin) and [`admit`](Self::admit).
    fn begin_claim(
        &self,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Claiming<Self::Begun>>> + Send {
        async move {
            // Where writers queue for one lock, a replay need not.
            if !request.sliding
                && let Some(told) = self.peek(request, now).await?
            {
                return Ok(Claiming::Told(told));
            }
            let mut begun = self.begin().await?;
            match self.admit_in(&mut begun, request, now).await? {
                Admission::Proceed(_) => Ok(Claiming::Begun(begun)),
                // What keeps a receipt for longer is a write.
                told if request.sliding => self.commit(begun).await.map(|()| Claiming::Told(told)),
                told => self.rollback(begun).await.map(|()| Claiming::Told(told)),
            }
        }
    }

    /// Keeps the reply of a request that was [claimed](Self::begin_claim) in this
    /// transaction, and commits it. `request` and `now` are those of the claim.
    ///
    /// # Errors
    /// As [`seal`](Self::seal) and [`commit`](Store::commit): unless it is
    /// [`Kind::CommitUnknown`](crate::Kind::CommitUnknown), nothing was committed.
    fn seal_claim(
        &self,
        mut begun: Self::Begun,
        request: &AdmitRequest,
        reply: &Reply,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = now;
        async move {
            let pass = request.pass();
            self.seal_in(&mut begun, &pass, reply).await?;
            self.commit_sound(begun, false).await.map(drop)
        }
    }

    /// Whether a transaction may still have the key of a [claim](Self::begin_claim) that was dropped, so that the next one would be told
    /// that it runs. Where the next one waits for it by itself, that is no question.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn is_claimed(&self, request: &AdmitRequest) -> impl Future<Output = Result<bool>> + Send {
        let _ = request;
        std::future::ready(Ok(false))
    }

    /// What a request would be told, without writing anything; `None` if it would be admitted.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn peek(
        &self,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Option<Admission>>> + Send;

    /// Keeps leases; tells for each pass whether it is still good.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn prolong(
        &self,
        passes: &[Pass],
        lease: Duration,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// Keeps the reply. Sealing again with the same pass changes nothing.
    ///
    /// # Errors
    /// [`Kind::Fenced`](crate::Kind::Fenced) if somebody else was admitted
    /// since, or the receipt is gone.
    fn seal(&self, pass: &Pass, reply: &Reply) -> impl Future<Output = Result<()>> + Send;

    /// As [`seal`](Self::seal), in the caller's transaction.
    ///
    /// # Errors
    /// As there.
    fn seal_in(
        &self,
        tx: &mut Self::Tx,
        pass: &Pass,
        reply: &Reply,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Forgets that the request was admitted: it had no effect. A pass that is no longer good changes nothing.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn withdraw(&self, pass: &Pass) -> impl Future<Output = Result<()>> + Send;

    /// Notes that nobody knows whether the request took effect. A pass that is no longer good changes nothing.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn doubt(&self, pass: &Pass) -> impl Future<Output = Result<()>> + Send;

    /// How many receipts a scope has, at most `limit`. Those whose time is over
    /// count until they are [forgotten](Self::forget).
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn count(&self, scope: &[u8; 32], limit: usize) -> impl Future<Output = Result<usize>> + Send;

    /// Deletes receipts whose time is over, at most `limit`; tells how many.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn forget(&self, limit: usize, now: Option<Timestamp>) -> impl Future<Output = Result<usize>> + Send;
}
