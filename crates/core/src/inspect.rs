//! What operators see. Object safe: the command line and the console choose
//! the store at run time.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::error::Result;
use crate::log::ParkedRow;
use crate::timestamp::Timestamp;

/// A boxed future, for the one trait that must be object safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Counts above this are reported as "at least".
pub const COUNT_CAP: i64 = 100_000;

/// One sink's progress through the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkStatus {
    /// The sink's name.
    pub sink: String,
    /// Log rows not settled yet, counted up to [`COUNT_CAP`].
    pub pending: i64,
    /// The age of the oldest of them.
    pub oldest: Option<Duration>,
    /// Refused and to be tried again.
    pub waiting: i64,
    /// Waiting behind a refused message of their key.
    pub behind: i64,
    /// Dead letters.
    pub dead: i64,
    /// Relays whose lease is alive.
    pub relays: i64,
    /// Shards nobody holds at the moment.
    pub unowned_shards: i64,
    /// When a cursor last moved.
    pub moved_at: Option<Timestamp>,
    /// Why the destination is unusable, as a live relay has found it.
    pub outage: Option<String>,
}

/// One handler's deliveries in the durable inbox; each count up to [`COUNT_CAP`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerStatus {
    /// The scope of its inbox.
    pub scope: String,
    /// The handler's key.
    pub handler: String,
    /// Ready, or to be tried again.
    pub ready: i64,
    /// In the hands of a worker.
    pub leased: i64,
    /// Waiting behind an earlier one of their lane.
    pub behind: i64,
    /// Nobody knows the handler.
    pub parked: i64,
    /// Dead letters.
    pub dead: i64,
    /// How long the oldest that is not over has been there.
    pub oldest: Option<Duration>,
}

/// The state of a store at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Rows in the log, counted up to [`COUNT_CAP`].
    pub logged: i64,
    /// Messages that wait for their time.
    pub scheduled: i64,
    /// Each sink that has ever been relayed to.
    pub sinks: Vec<SinkStatus>,
    /// Markers, counted up to [`COUNT_CAP`].
    pub markers: i64,
    /// Messages no handler could take.
    pub dead_letters: i64,
    /// Each handler that has deliveries which are not done, by scope and key.
    pub handlers: Vec<HandlerStatus>,
}

/// Looking, without changing anything.
pub trait Inspect: Send + Sync {
    /// Counts, each bounded.
    fn status(&self) -> BoxFuture<'_, Result<Status>>;
    /// Parked rows of all sinks, oldest first.
    fn parked(&self, limit: usize) -> BoxFuture<'_, Result<Vec<ParkedRow>>>;
    /// Dead letters of one sink or of all, oldest first, however many other
    /// rows are parked.
    fn dead<'s>(&'s self, sink: Option<&'s str>, limit: usize) -> BoxFuture<'s, Result<Vec<ParkedRow>>>;
}
