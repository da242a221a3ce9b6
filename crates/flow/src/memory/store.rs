//! The store's type and its transactions.
//!
//! One writer at a time, as in SQLite: a transaction holds the writer's lock
//! from begin to end and keeps what it writes to itself until commit. Readers
//! take no part in that; they see what is committed.

use std::collections::{BTreeMap, HashMap};
use std::error::Error as StdError;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncebox_core::timestamp::micros;
use oncebox_core::{Error, Kind, Result, Store, Timestamp, Transaction};
use tokio::sync::OwnedMutexGuard;

use super::dedup::{DeadLetter, Marker, MarkerKey};
use super::receipts::Admitted;
use super::state::{Puts, State};
use super::stock::Stock;

/// Rows of the user's own, by table.
pub(super) type Tables = HashMap<String, Vec<String>>;

/// A store that forgets everything when its last clone is dropped.
#[derive(Clone)]
pub struct MemoryStore {
    /// The writer's lock, around the tables as the writer sees them.
    writer: Arc<tokio::sync::Mutex<Tables>>,
    state: Arc<Mutex<State>>,
    lock_wait: Duration,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self { writer: Arc::default(), state: Arc::default(), lock_wait: Duration::from_secs(2) }
    }

    /// How long a writer waits for the one before it; 2 s unless changed.
    #[must_use]
    pub fn lock_wait(mut self, lock_wait: Duration) -> Self {
        self.lock_wait = lock_wait;
        self
    }

    /// The most markers all clones hold together; no limit unless chosen. A full
    /// store refuses to handle new messages ([`Kind::Unavailable`], so they
    /// come again) until old markers are purged; it never forgets one to make room.
    #[must_use]
    pub fn marker_capacity(self, markers: usize) -> Self {
        self.state().markers.limit(markers);
        self
    }

    /// The most bytes that the gate's receipts take in all clones together;
    /// 256 MiB unless chosen. When there is no room, those whose time ends
    /// first are forgotten, and a request that comes again runs again. What is
    /// in flight is never forgotten.
    #[must_use]
    pub fn receipt_capacity(self, bytes: usize) -> Self {
        self.state().receipts.limit(bytes);
        self
    }

    /// The committed rows of one of the user's tables, in commit order.
    pub async fn rows(&self, table: &str) -> Vec<String> {
        self.state().tables.get(table).cloned().unwrap_or_default()
    }

    /// What no handler could take, in the order it was buried.
    pub async fn dead_letters(&self) -> Vec<DeadLetter> {
        self.state().graveyard.letters().cloned().collect()
    }

    /// What is committed. The guard must not live across an await.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes what is committed in one step, as a transaction of its own.
    pub(super) async fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T> {
        let _writer = self.writer().await?;
        Ok(change(&mut self.state()))
    }

    async fn writer(&self) -> Result<OwnedMutexGuard<Tables>> {
        // The common case starts no timer.
        if let Ok(writer) = Arc::clone(&self.writer).try_lock_owned() {
            return Ok(writer);
        }
        tokio::time::timeout(self.lock_wait, Arc::clone(&self.writer).lock_owned())
            .await
            .map_err(|_| Error::new(Kind::Busy, "another transaction holds the store's writer lock"))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("lock_wait", &self.lock_wait).finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    type Tx = MemoryTx;
    type Begun = MemoryBegun;

    async fn begin(&self) -> Result<MemoryBegun> {
        let tables = self.writer().await?;
        let state = Arc::clone(&self.state);
        Ok(MemoryBegun(MemoryTx {
            tables,
            state,
            puts: Puts::default(),
            markers: HashMap::new(),
            left: Vec::new(),
            stock: Stock::default(),
            admitted: Admitted::default(),
            grown: BTreeMap::new(),
            saved: None,
        }))
    }

    async fn commit(&self, mut begun: MemoryBegun) -> Result<()> {
        begun.0.publish();
        Ok(())
    }

    async fn rollback(&self, begun: MemoryBegun) -> Result<()> {
        drop(begun);
        Ok(())
    }

    async fn clock(&self, _: &mut MemoryTx) -> Result<Timestamp> {
        Ok(at(None))
    }

    fn classify(&self, error: &(dyn StdError + 'static)) -> Option<Kind> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<Error>() {
                return Some(error.kind());
            }
            next = error.source();
        }
        None
    }
}

/// What a handler writes through: the writer's place, and what it has written.
pub struct MemoryTx {
    tables: OwnedMutexGuard<Tables>,
    pub(super) state: Arc<Mutex<State>>,
    pub(super) puts: Puts,
    pub(super) markers: HashMap<MarkerKey, Marker>,
    pub(super) left: Vec<MarkerKey>,
    /// Messages and deliveries of the durable inbox that were added or changed.
    pub(super) stock: Stock,
    /// What the gate has let in here.
    pub(super) admitted: Admitted,
    /// Tables that were appended to, with the length to cut them back to.
    grown: BTreeMap<String, usize>,
    saved: Option<Box<Saved>>,
}

/// What a transaction had written at its savepoint.
struct Saved {
    puts: Puts,
    markers: HashMap<MarkerKey, Marker>,
    left: usize,
    stock: Stock,
    lengths: BTreeMap<String, usize>,
}

impl MemoryTx {
    /// What is written from here on can be undone.
    pub(super) fn save(&mut self) {
        let length = |table: &String| self.tables.get(table).map_or(0, Vec::len);
        self.saved = Some(Box::new(Saved {
            puts: self.puts.clone(),
            markers: self.markers.clone(),
            left: self.left.len(),
            stock: self.stock.clone(),
            lengths: self.grown.keys().map(|table| (table.clone(), length(table))).collect(),
        }));
    }

    /// Undoes what was written since it was last saved.
    pub(super) fn undo(&mut self) {
        let Some(saved) = self.saved.take() else { return };
        for (table, start) in &self.grown {
            if let Some(rows) = self.tables.get_mut(table) {
                rows.truncate(saved.lengths.get(table).copied().unwrap_or(*start));
            }
        }
        self.puts = saved.puts;
        self.markers = saved.markers;
        self.left.truncate(saved.left);
        self.stock = saved.stock;
        self.save();
    }

    /// Adds a row to one of the user's tables.
    pub fn append(&mut self, table: &str, row: String) {
        let rows = self.tables.entry(table.to_owned()).or_default();
        self.grown.entry(table.to_owned()).or_insert(rows.len());
        rows.push(row);
    }

    /// The rows of one of the user's tables, this transaction's own included.
    #[must_use]
    pub fn rows(&self, table: &str) -> &[String] {
        self.tables.get(table).map_or(&[], Vec::as_slice)
    }

    /// Makes everything written here visible to all, in one step.
    fn publish(&mut self) {
        let mut state = lock(&self.state);
        state.log.take(std::mem::take(&mut self.puts));
        state.stock.absorb(std::mem::take(&mut self.stock));
        self.admitted.publish(&mut state.receipts);
        for key in self.left.drain(..) {
            match state.entries.get_mut(&key) {
                Some((entries, _)) if *entries > 1 => *entries -= 1,
                _ => drop(state.entries.remove(&key)),
            }
        }
        for (key, marker) in self.markers.drain() {
            state.markers.set(key, marker);
        }
        for (table, start) in std::mem::take(&mut self.grown) {
            let grown = self.tables.get(&table).and_then(|rows| rows.get(start..)).unwrap_or_default();
            state.tables.entry(table).or_default().extend_from_slice(grown);
        }
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        if !self.admitted.is_empty() {
            self.admitted.undo(&mut lock(&self.state).receipts);
        }
        for (table, length) in &self.grown {
            if let Some(rows) = self.tables.get_mut(table) {
                rows.truncate(*length);
            }
        }
    }
}

impl fmt::Debug for MemoryTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTx").finish_non_exhaustive()
    }
}

/// An open transaction; dropping it rolls back.
#[derive(Debug)]
pub struct MemoryBegun(MemoryTx);

impl Deref for MemoryBegun {
    type Target = MemoryTx;

    fn deref(&self) -> &MemoryTx {
        &self.0
    }
}

impl DerefMut for MemoryBegun {
    fn deref_mut(&mut self) -> &mut MemoryTx {
        &mut self.0
    }
}

impl Transaction<MemoryStore> for MemoryBegun {
    fn connection(&mut self) -> &mut MemoryTx {
        &mut self.0
    }
}

/// Every change is made in one piece, so a panic elsewhere leaves nothing half done behind the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `now` if the caller owns time, else this machine's clock.
pub(super) fn at(now: Option<Timestamp>) -> Timestamp {
    now.unwrap_or_else(|| {
        Timestamp::from_micros(micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_transaction_leaves_no_rows_and_a_committed_one_does() {
        let store = MemoryStore::new();

        let mut dropped = store.begin().await.unwrap();
        dropped.append("orders", "a".into());
        assert_eq!(dropped.rows("orders"), ["a"]);
        drop(dropped);
        let mut kept = store.begin().await.unwrap();
        kept.append("orders", "b".into());
        assert!(store.rows("orders").await.is_empty(), "uncommitted rows are nobody else's");
        store.commit(kept).await.unwrap();

        assert_eq!(store.rows("orders").await, ["b"]);
        assert_eq!(store.begin().await.unwrap().rows("orders"), ["b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_writer_waits_and_then_is_told_the_store_is_busy() {
        let store = MemoryStore::new().lock_wait(Duration::from_millis(50));
        let first = store.begin().await.unwrap();

        let busy = store.begin().await.unwrap_err();
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.begin().await.map(drop) }
        });
        tokio::task::yield_now().await;
        drop(first);

        assert_eq!(busy.kind(), Kind::Busy);
        waiting.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_begin_that_was_given_up_does_not_keep_the_lock() {
        let store = MemoryStore::new();
        let first = store.begin().await.unwrap();
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.begin().await.map(drop) }
        });
        tokio::task::yield_now().await;

        waiting.abort();
        drop(first);

        store.begin().await.unwrap();
    }

    #[derive(Debug, thiserror::Error)]
    #[error("failed")]
    struct Failed(#[source] Error);

    #[test]
    fn an_error_of_the_seams_is_recognised_below_its_wrappers() {
        let store = MemoryStore::new();
        let wrapped = Failed(Error::new(Kind::Fenced, "lost"));
        let foreign = std::io::Error::other("disk");

        assert_eq!(store.classify(&Error::new(Kind::Busy, "wait")), Some(Kind::Busy));
        assert_eq!(store.classify(&wrapped), Some(Kind::Fenced));
        assert_eq!(store.classify(&foreign), None);
    }
}
