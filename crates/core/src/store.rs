//! The database seam, one trait per role.
//!
//! The user's own transaction is the seam: [`Store::Tx`] is the driver's
//! connection while a transaction is open on it, and [`Transaction`] is what
//! proves that one is. A store that cannot honour a role does not implement it.
//!
//! Every time-dependent method takes `now`; `None` is the database's clock.

use std::error::Error as StdError;
use std::future::Future;
use std::ops::DerefMut;
use std::time::Duration;

use crate::digest::Digest;
use crate::envelope::Envelope;
use crate::error::{Kind, Result};
use crate::handler::MessageKey;
use crate::log::{ClaimRequest, Cursor, DueRow, LaneKey, Position, Settlement, Shard, Span, Window};
use crate::timestamp::Timestamp;

/// Opens and closes transactions.
pub trait Store: Clone + Send + Sync + 'static {
    /// The driver's connection inside a transaction: what a handler writes through.
    type Tx: Send;
    /// An open transaction that rolls back when dropped.
    type Begun: DerefMut<Target = Self::Tx> + Transaction<Self> + Send + 'static;

    /// Opens a transaction. Cancel safe: a dropped call leaves no connection
    /// inside an open transaction.
    ///
    /// # Errors
    /// [`Kind::Unavailable`], or [`Kind::Busy`] where writers queue for one lock.
    fn begin(&self) -> impl Future<Output = Result<Self::Begun>> + Send;

    /// Commits. Durable when it returns.
    ///
    /// # Errors
    /// [`Kind::CommitUnknown`] if the connection broke under way;
    /// [`Kind::Rejected`] if an earlier statement had already doomed the transaction.
    fn commit(&self, begun: Self::Begun) -> impl Future<Output = Result<()>> + Send;

    /// Commits right after a statement of the store itself went well: no
    /// earlier one can have doomed the transaction, so that need not be asked.
    /// With `goes_on`, the next transaction may be begun along with it, on the
    /// same connection.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    fn commit_sound(
        &self,
        begun: Self::Begun,
        goes_on: bool,
    ) -> impl Future<Output = Result<Option<Self::Begun>>> + Send {
        let _ = goes_on;
        async { self.commit(begun).await.map(|()| None) }
    }

    /// Rolls back and waits until it is done.
    ///
    /// # Errors
    /// [`Kind::Unavailable`]; the transaction is gone all the same.
    fn rollback(&self, begun: Self::Begun) -> impl Future<Output = Result<()>> + Send;

    /// Checks, before anything starts, that the database keeps what it commits
    /// and has the tables this build expects.
    ///
    /// # Errors
    /// [`Kind::Config`] with what to do about it.
    fn verify(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// What time the database says it is.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn clock(&self, tx: &mut Self::Tx) -> impl Future<Output = Result<Timestamp>> + Send;

    /// What an error means if it is one of this store's driver, which a
    /// handler may pass up unchanged.
    fn classify(&self, error: &(dyn StdError + 'static)) -> Option<Kind>;
}

/// Proof that a transaction is open. Implemented by the driver's transaction
/// type and by [`Store::Begun`], never by pools or bare connections.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction of this store",
    label = "a transaction is needed here",
    note = "begin one and pass `&mut tx`; a pool or a bare connection would let the message leave without your writes",
    note = "`put_on` takes a connection, if you know that a transaction is open on it"
)]
pub trait Transaction<S: Store>: Send {
    /// The connection inside.
    fn connection(&mut self) -> &mut S::Tx;
}

/// Whether something happened for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// It did.
    First,
    /// It had happened before.
    Duplicate,
}

/// The outbox: what producers write and relays read.
pub trait Mailbox: Store {
    /// Adds envelopes to the log (or to the schedule, if they have a due time)
    /// in the caller's transaction. An id that is already there is left alone
    /// and answered with [`Once::Duplicate`]; the transaction stays usable.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn put(
        &self,
        tx: &mut Self::Tx,
        batch: &[Envelope],
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Vec<Once>>> + Send;

    /// Whether a put of this envelope is committed. Waits for a transaction
    /// that is about to decide it, so `false` is final: this is how an unknown
    /// commit is resolved.
    ///
    /// # Errors
    /// [`Kind::Busy`] if it is not decided within the lock timeout.
    fn holds(&self, envelope: &Envelope) -> impl Future<Output = Result<bool>> + Send;

    /// Moves due messages from the schedule to the log; tells how many.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn promote(&self, limit: usize, now: Option<Timestamp>) -> impl Future<Output = Result<usize>> + Send;

    /// Announces a relay, renews what it holds, takes what is free and gives
    /// back what is more than its fair share. Answers with all it holds. The
    /// outage it reports replaces what it reported before.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn claim(
        &self,
        request: &ClaimRequest,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Vec<Cursor>>> + Send;

    /// Reads committed rows. Never skips one: a position that may still be
    /// filled is reported as a hole.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn read(&self, window: Window<'_>) -> impl Future<Output = Result<Span>> + Send;

    /// Writes progress back, whole or not at all.
    ///
    /// # Errors
    /// [`Kind::Fenced`] if any of the shards has another owner by now.
    fn settle(
        &self,
        settlement: &Settlement,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Parked rows whose time has come, each followed by the rows behind it, by position.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn due(
        &self,
        sink: &str,
        shards: &[Shard],
        limit: usize,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Vec<DueRow>>> + Send;

    /// The lanes that have parked rows in these shards. With `skip_dead`, lanes
    /// with nothing but dead letters do not count.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn blocked(
        &self,
        sink: &str,
        shards: &[Shard],
        skip_dead: bool,
    ) -> impl Future<Output = Result<Vec<LaneKey>>> + Send;

    /// Gives back everything a relay holds, for others to take at once.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn release(&self, sink: &str, holder: &str) -> impl Future<Output = Result<()>> + Send;

    /// Tries a dead letter again with fresh attempts; `false` if there is none at `position`.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn requeue(
        &self,
        sink: &str,
        position: Position,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Gives a dead letter up, freeing its lane; `false` if there is none at `position`.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn discard(
        &self,
        sink: &str,
        position: Position,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<bool>> + Send;
}

/// What a marker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark<'a> {
    /// The message's tenant, or empty.
    pub tenant: &'a str,
    /// The handler's key.
    pub handler: &'a str,
    /// The message, to this handler.
    pub key: &'a MessageKey,
    /// The body under that key.
    pub digest: Digest,
    /// When the message entered its log, if it says so.
    pub time: Option<Timestamp>,
    /// Refuse messages older than this: their marker may have been purged.
    pub window: Option<Duration>,
}

/// What a mark found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marked {
    /// It is ours to handle, if this transaction commits.
    First,
    /// It was handled.
    Duplicate {
        /// The reply stored with it.
        result: Option<Vec<u8>>,
    },
    /// Another body was handled under this key.
    Conflict,
    /// It is older than what the markers can prove.
    TooOld,
}

/// A message nobody could handle, with what is known about it.
#[derive(Clone, Debug)]
pub struct Burial<'a> {
    /// Where it came from.
    pub channel: &'a str,
    /// The handler that gave up, or empty.
    pub handler: &'a str,
    /// A stable code.
    pub code: &'a str,
    /// The error, with its causes.
    pub reason: &'a str,
    /// Attempts spent.
    pub attempts: u32,
    /// The message, whole.
    pub envelope: &'a Envelope,
}

/// The inbox's memory. Only for stores whose marker commits with the effect.
pub trait Dedup: Store {
    /// Writes the marker first thing in the handler's transaction. If another
    /// transaction holds the same marker, waits for its outcome, for a bounded
    /// time.
    ///
    /// # Errors
    /// [`Kind::Busy`] when the wait was in vain, [`Kind::Contention`] to start over.
    fn mark(
        &self,
        tx: &mut Self::Tx,
        mark: &Mark<'_>,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Marked>> + Send;

    /// Counts, in a transaction of its own, that a worker is about to run the
    /// handler; tells how many such runs have not [left](Self::leave). Those
    /// beyond this one ended with the death of their process.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn enter(&self, mark: &Mark<'_>, now: Option<Timestamp>) -> impl Future<Output = Result<u32>> + Send;

    /// Takes back one run counted by [`enter`](Self::enter): it ended in good order.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn leave(&self, tx: &mut Self::Tx, mark: &Mark<'_>) -> impl Future<Output = Result<()>> + Send;

    /// Stores the reply that duplicates of a request will get.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn reply(
        &self,
        tx: &mut Self::Tx,
        mark: &Mark<'_>,
        result: &[u8],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Stores a dead letter. Storing the same one twice keeps one.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn bury(&self, burial: &Burial<'_>, now: Option<Timestamp>) -> impl Future<Output = Result<()>> + Send;
}

/// What to purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Log rows that every sink has settled, older than this.
    Outbox(Duration),
    /// Markers of one handler, older than this.
    Markers {
        /// The handler's key.
        handler: String,
        /// How old.
        older_than: Duration,
    },
    /// Relays that have not been seen for this long.
    Relays(Duration),
    /// Runs of handlers that were entered this long ago and never left.
    Entries(Duration),
    /// Deliveries of one handler that were done or discarded this long ago.
    Deliveries {
        /// The scope of its inbox.
        scope: String,
        /// The handler's key.
        handler: String,
        /// How long ago.
        older_than: Duration,
    },
    /// Messages of the durable inbox accepted this long ago of which no
    /// delivery is left.
    Messages(Duration),
}

/// Forgetting, within bounds.
pub trait Retention: Store {
    /// Deletes at most `limit` rows; tells how many. Never touches a dead
    /// letter, a parked row, or a row some sink has not settled.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn purge(
        &self,
        purge: &Purge,
        limit: usize,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<usize>> + Send;

    /// Takes or renews the right to sweep for this long; `false` while another
    /// `holder` has it. One sweeper is enough for all processes of a database.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn hold_broom(
        &self,
        holder: &str,
        lease: Duration,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<bool>> + Send;
}
