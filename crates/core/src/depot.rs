//! The durable inbox: messages that were accepted, and what each handler has
//! made of them.
//!
//! A message is stored once per (scope, channel, tenant, source, id), with one
//! *delivery* per handler: the row that is taken, tried again, finished or
//! buried. A worker holds a delivery by a [`Ticket`]; every change it makes is
//! conditional on the ticket's fence, so that one whose lease was lost can
//! change nothing.
//!
//! ```text
//!            take                finish
//!   Ready ---------> Leased ----------------> Done
//!     ^  ^             |  \ conclude(Retry)
//!     |  '-------------+---'
//!     |                '--- conclude(Dead) --> Dead --> requeue: Ready
//!   Behind (an earlier one of its lane)          '----> discard: Discarded
//!   Parked (nobody knows its handler) <-> Ready
//! ```

use std::future::Future;
use std::time::Duration;

use crate::digest::Digest;
use crate::envelope::Envelope;
use crate::error::Result;
use crate::handler::MessageKey;
use crate::store::{Dedup, Mark};
use crate::timestamp::Timestamp;

/// The number of a stored message or of a delivery; grows in the order of acceptance.
pub type Number = i64;
/// Failed attempts that a delivery remembers, the latest ones.
pub const HISTORY: usize = 20;
/// The characters of a reason that are kept.
pub const MAX_REASON: usize = 4_000;

/// A message to be stored for its handlers.
#[derive(Clone, Debug)]
pub struct Deposit<'a> {
    /// Separates services that share one database; mostly empty.
    pub scope: &'a str,
    /// Where it came from.
    pub channel: &'a str,
    /// The message. One without an id is told from others by its digest.
    pub envelope: &'a Envelope,
    /// Who gets it.
    pub assignments: Vec<Assignment<'a>>,
}

/// One handler's share of a deposit.
#[derive(Clone, Debug)]
pub struct Assignment<'a> {
    /// The handler's key.
    pub handler: &'a str,
    /// The handler's name in markers: its key, within its scope.
    pub marker: &'a str,
    /// The message, to this handler.
    pub key: MessageKey,
    /// If set, this delivery waits until the earlier ones of the same
    /// (scope, handler, tenant, lane) are over.
    pub lane: Option<&'a str>,
    /// A message older than this is born dead with the code `too_old`: its
    /// marker may have been purged.
    pub window: Option<Duration>,
    /// Why it cannot be handled at all; it is born dead then.
    pub refused: Option<(&'a str, &'a str)>,
    /// One that is born dead leaves its lane: later ones do not wait for it.
    pub frees_lane: bool,
}

/// What became of a deposit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deposited {
    /// It is new; one answer per assignment, in their order.
    Stored {
        /// The message's number.
        number: Number,
        /// What became of each assignment.
        assigned: Vec<Assigned>,
    },
    /// It was stored before, with the handlers of that time. Nothing changed.
    Duplicate,
    /// Another body was stored under this id. Nothing changed.
    Conflict,
}

/// What became of one handler's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assigned {
    /// It waits for the handler, or was born dead.
    New,
    /// The handler has, or had, a delivery or a marker under this key.
    Duplicate,
    /// As [`Duplicate`](Self::Duplicate), but with another body.
    Conflict,
}

/// What a worker asks for.
#[derive(Clone, Debug)]
pub struct TakeRequest<'a> {
    /// Only deliveries of this scope.
    pub scope: &'a str,
    /// The worker, unique among all processes.
    pub holder: &'a str,
    /// How long the lease lasts without renewal.
    pub lease: Duration,
    /// At most this many in all.
    pub limit: usize,
    /// Of those taken, this many start at once: their attempt is counted. The
    /// others are held until [`Depot::start`] or a `next` counts theirs.
    pub seats: usize,
    /// The handlers that can be run, each with a bound of its own. Nothing
    /// else is taken: an instance never touches what it does not know.
    pub wants: &'a [Want<'a>],
    /// Take suspects, and nothing else: deliveries whose last run started and
    /// ended with its lease. A worker runs them alone, so that one that kills
    /// the process takes nobody along.
    pub suspects: bool,
}

/// How many deliveries of one handler are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want<'a> {
    /// The handler's key, or one of its former ones.
    pub handler: &'a str,
    /// At most this many.
    pub limit: usize,
}

/// The right to change one delivery, until somebody else takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The delivery.
    pub number: Number,
    /// Grows with every take.
    pub fence: i64,
}

/// A delivery in a worker's hands.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The right to it.
    pub ticket: Ticket,
    /// The key its row has; possibly a former one of the handler.
    pub handler: String,
    /// Where the message came from.
    pub channel: String,
    /// The message, to this handler.
    pub key: MessageKey,
    /// Its body's digest.
    pub digest: Digest,
    /// Its lane, if it has one.
    pub lane: Option<String>,
    /// The execution it is taken for, counted from 1.
    pub attempt: u32,
    /// How many runs before this one started and ended with their lease.
    pub deaths: u32,
    /// How often an operator had it replayed after it was done.
    pub generation: u32,
    /// Whether the attempt is counted already.
    pub started: bool,
    /// When the message was accepted.
    pub received_at: Timestamp,
    /// The message.
    pub envelope: Envelope,
}

/// What a finished run leaves, in the handler's transaction.
#[derive(Clone, Debug)]
pub struct Finish<'a> {
    /// The right to it.
    pub ticket: Ticket,
    /// The marker to write; none for messages that are not told apart.
    pub mark: Option<Mark<'a>>,
    /// The reply for duplicates of a request.
    pub result: Option<&'a [u8]>,
    /// Whether the delivery has a lane: the next of it becomes ready.
    pub frees_lane: bool,
    /// A held delivery whose attempt is counted by the same commit.
    pub next: Option<Ticket>,
}

/// What becomes of a delivery whose transaction was rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate<'a> {
    /// It is tried again.
    Retry {
        /// Not before this has passed.
        after: Duration,
        /// Whether the attempt counts, and is remembered.
        spent: bool,
        /// A stable code.
        code: &'a str,
        /// The error, with its causes.
        reason: &'a str,
    },
    /// It waits for a person.
    Dead {
        /// Whether the attempt counts.
        spent: bool,
        /// A stable code.
        code: &'a str,
        /// The error, with its causes.
        reason: &'a str,
        /// Whether the next of its lane may run, leaving a gap.
        frees_lane: bool,
    },
    /// It took effect elsewhere.
    Duplicate,
}

/// Where a delivery stands, seen from a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was finished under this ticket.
    Done,
    /// The ticket is still good.
    Held,
    /// Somebody else has decided, or will.
    Lost,
}

/// A step through the places to which a transaction can be taken back, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Savepoint {
    /// From here on.
    Set,
    /// What was written since then stays; from here on.
    Next,
    /// What was written since then is undone; from there on again.
    Undo,
}

/// A stored message.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Its number.
    pub number: Number,
    /// The message.
    pub envelope: Envelope,
}

/// The durable inbox's tables. Completion commits with the handler's writes,
/// so only stores with a transactional marker can offer it.
pub trait Depot: Dedup {
    /// Stores messages and their deliveries in the caller's transaction, in
    /// the order given. Two equal deposits in one batch are one and a duplicate.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn deposit(
        &self,
        tx: &mut Self::Tx,
        deposits: &[Deposit<'_>],
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Vec<Deposited>>> + Send;

    /// Leases deliveries that are due, oldest first, in a short transaction.
    /// One whose lease has run out is due, in the place that it had; if its run
    /// had started, that was a death, and it is a suspect from then on, until a
    /// run of it is concluded.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn take(
        &self,
        request: &TakeRequest<'_>,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Vec<Taken>>> + Send;

    /// Whether suspects of these handlers are due.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn has_suspects(
        &self,
        scope: &str,
        wants: &[Want<'_>],
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Counts the attempts of held deliveries that are about to run. Tells
    /// which tickets are still good, in the order given.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn start(&self, tickets: &[Ticket]) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// Renews leases. Tells which tickets are still good, in the order given.
    /// Never waits for a connection that handlers use up.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn renew(
        &self,
        tickets: &[Ticket],
        lease: Duration,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// The last statement of a handler's transaction: the delivery is done and
    /// the marker written, if the ticket is still good. [`Marked::Duplicate`]
    /// or [`Marked::Conflict`] tells that a marker was there before; roll back then.
    ///
    /// [`Marked::Duplicate`]: crate::store::Marked::Duplicate
    /// [`Marked::Conflict`]: crate::store::Marked::Conflict
    ///
    /// # Errors
    /// [`Kind::Fenced`](crate::Kind::Fenced) if the lease was lost: roll back.
    fn finish(
        &self,
        tx: &mut Self::Tx,
        finish: &Finish<'_>,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<crate::store::Marked>> + Send;

    /// [`finish`](Self::finish) for several deliveries of one transaction; one
    /// answer for each. None of them has a lane, a `next`, or a key twice.
    ///
    /// # Errors
    /// [`Kind::Fenced`](crate::Kind::Fenced) if one of the leases was lost: roll back.
    fn finish_all(
        &self,
        tx: &mut Self::Tx,
        finishes: &[Finish<'_>],
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Vec<crate::store::Marked>>> + Send {
        async move {
            let mut marked = Vec::with_capacity(finishes.len());
            for finish in finishes {
                marked.push(self.finish(tx, finish, now).await?);
            }
            Ok(marked)
        }
    }

    /// Moves the place to which the transaction can be taken back.
    ///
    /// # Errors
    /// By kind of the failed statement: a transaction that an earlier
    /// statement has doomed can only be undone.
    fn savepoint(&self, tx: &mut Self::Tx, step: Savepoint) -> impl Future<Output = Result<()>> + Send;

    /// Writes what becomes of a delivery that was rolled back, in a
    /// transaction of its own, and counts the attempt of `next` along with it.
    ///
    /// # Errors
    /// [`Kind::Fenced`](crate::Kind::Fenced) if the lease was lost; nothing is written then.
    fn conclude(
        &self,
        ticket: Ticket,
        fate: &Fate<'_>,
        next: Option<Ticket>,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Gives deliveries back for others to take at once; an attempt that was
    /// counted is taken back. Tickets that are no longer good are left alone.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn give_back(
        &self,
        tickets: &[Ticket],
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Where a delivery stands. Waits for a transaction that is about to
    /// decide it: this is how an unknown commit is resolved.
    ///
    /// # Errors
    /// [`Kind::Busy`](crate::Kind::Busy) if it is not decided within the lock timeout.
    fn standing(&self, ticket: Ticket) -> impl Future<Output = Result<Standing>> + Send;

    /// Remembers, in a transaction of its own, that a run is about to cause
    /// the effect `name` outside. Answers with the result of an earlier run
    /// that got that far.
    ///
    /// # Errors
    /// [`Kind::Fenced`](crate::Kind::Fenced) if the lease was lost.
    fn intend(
        &self,
        ticket: Ticket,
        name: &str,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send;

    /// Remembers the result of the effect `name`.
    ///
    /// # Errors
    /// [`Kind::Fenced`](crate::Kind::Fenced) if the lease was lost.
    fn record(&self, ticket: Ticket, name: &str, result: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// Says that somebody can run these handlers; what was parked for want of
    /// them becomes ready. Tells how many deliveries that were.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn announce(
        &self,
        scope: &str,
        handlers: &[&str],
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<usize>> + Send;

    /// Parks deliveries that have been ready for longer than `after` and whose
    /// handler nobody has announced since; tells how many.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn park_orphans(
        &self,
        after: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<usize>> + Send;

    /// Messages of a channel accepted since then, after `after`, by number.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn stored(&self, page: &StoredPage<'_>) -> impl Future<Output = Result<Vec<Stored>>> + Send;

    /// Gives a stored message to one more handler.
    ///
    /// # Errors
    /// By kind of the failed statement.
    fn assign(
        &self,
        tx: &mut Self::Tx,
        message: Number,
        assignment: &Assignment<'_>,
        now: Option<Timestamp>,
    ) -> impl Future<Output = Result<Assigned>> + Send;
}

/// Which stored messages to read.
#[derive(Clone, Copy, Debug)]
pub struct StoredPage<'a> {
    /// The scope.
    pub scope: &'a str,
    /// The channel.
    pub channel: &'a str,
    /// Only this type.
    pub kind: &'a str,
    /// Accepted then or later.
    pub since: Timestamp,
    /// With a greater number than this.
    pub after: Number,
    /// At most this many.
    pub limit: usize,
}

/// A reason as every store keeps it: bounded, and without U+0000, which not
/// every database can hold.
#[must_use]
pub fn reason_text(reason: &str) -> String {
    reason.chars().take(MAX_REASON).map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// A handler's key in markers after an operator had a delivery replayed: the
/// first run's marker stays.
#[must_use]
pub fn replayed(key: &MessageKey, generation: u32) -> MessageKey {
    match generation {
        0 => key.clone(),
        n => MessageKey {
            source: key.source.clone(),
            id: crate::digest::bounded_key(&format!("{}~{n}", key.id)),
        },
    }
}
