//! A database to measure in, and the same work written by hand for it.
//!
//! The hand-written half is what a careful engineer would write with sqlx and
//! no library: prepared statements, one connection held where that is natural,
//! and no more columns than the work needs.

pub(crate) mod postgres;
pub(crate) mod sqlite;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use oncebox_core::store::{Dedup, Mailbox};
use oncebox_core::{Envelope, Failure, Publisher};
use oncebox_flow::{Inbox, Outbox};

use crate::order::Order;

/// The handler both halves mark for.
pub(crate) const HANDLER: &str = "bench.record";

/// One database with oncebox's tables and two of the bench's own.
pub(crate) trait Lab: Clone + Send + Sync + 'static {
    /// The product's store here.
    type Store: Mailbox + Dedup;
    /// The first part of a measure's name.
    const NAME: &'static str;

    /// The store, on the pool that the hand-written half uses too.
    fn store(&self) -> &Self::Store;
    /// An inbox whose handler inserts one effect row.
    fn inbox(&self) -> Inbox<Self::Store>;
    /// Adds rows to the log.
    fn load(&self, rows: u64) -> impl Future<Output = ()> + Send;
    /// Adds markers, as if so many messages had been handled.
    fn load_markers(&self, rows: u64) -> impl Future<Output = ()> + Send;
    /// Makes statistics and pages what they are in a database that has been running.
    fn settle_down(&self) -> impl Future<Output = ()> + Send;
    /// Puts the product's cursor and the hand-written one at `position`.
    fn rewind(&self, position: i64) -> impl Future<Output = ()> + Send;
    /// Empties the bench's own tables.
    fn forget_effects(&self) -> impl Future<Output = ()> + Send;
    /// Effect rows there are.
    fn effects(&self) -> impl Future<Output = u64> + Send;

    /// A business transaction with a put.
    fn put(&self, outbox: &Outbox<Self::Store>, order: &Order) -> impl Future<Output = ()> + Send;
    /// The same with one INSERT.
    fn put_by_hand(&self, order: &Order) -> impl Future<Output = ()> + Send;
    /// Reads batches and moves a cursor until `limit` rows were read or none is left; tells how many.
    fn drain_by_hand(&self, batch: i64, limit: u64) -> impl Future<Output = u64> + Send;
    /// BEGIN, marker, effect, COMMIT.
    fn receive_by_hand(&self, envelope: &Envelope) -> impl Future<Output = ()> + Send;
    /// Durability as the server tells it.
    fn durability(&self) -> impl Future<Output = String> + Send;
}

/// A publisher that confirms everything at once, up to a limit; then the
/// destination is down, which ends a relay's pass.
#[derive(Debug)]
pub(crate) struct Null {
    limit: u64,
    taken: AtomicU64,
}

impl Null {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, taken: AtomicU64::new(0) }
    }
}

impl Publisher for Null {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let before = self.taken.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if before >= self.limit {
            return vec![Err(Failure::destination("enough")); batch.len()];
        }
        vec![Ok(()); batch.len()]
    }
}
