//! SQLite: the write lock, the schema, and what is stored where.

mod depot;
mod log;
mod memory;
mod relay;
mod schema;
mod transaction;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::Inspect;
use oncebox_core::log::{
    ClaimRequest, Cursor, LaneKey, MAX_HOLES, Park, Parking, Position, SHARDS, Settlement, Shard, Window,
};
use oncebox_core::store::{Burial, Mark, Marked, Purge};
use oncebox_core::{
    Dedup, Digest, Envelope, Error, Identifier, Kind, Mailbox, Once, Retention, Store, Timestamp, Transaction,
};
use oncebox_stores::sqlite::migrate::{self, MigrationState};
use oncebox_stores::sqlite::{SqliteStore, pool_options};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

const ALL: [Shard; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const MINUTE: Duration = Duration::from_secs(60);

/// A database file of one test.
struct Database {
    file: PathBuf,
}

impl Database {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("oncebox-it-{}-{number}.db", std::process::id()));
        let database = Self { file };
        database.remove();
        database
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.file.display())
    }

    async fn store(&self) -> SqliteStore {
        let store = SqliteStore::create(&self.url()).await.unwrap();
        migrate::up(&store).await.unwrap();
        store
    }

    fn options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.file)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
    }

    fn remove(&self) {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.file.display()));
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.remove();
    }
}

fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp::from_micros(seconds * 1_000_000))
}

fn envelope(id: &str, key: Option<&str>) -> Envelope {
    Envelope {
        id: id.into(),
        source: "shop".into(),
        kind: "order.placed".into(),
        schema_version: 3,
        key: key.map(Into::into),
        destination: "orders".into(),
        content_type: "application/json".into(),
        payload: format!("{{\"id\":\"{id}\"}}").into_bytes(),
        ..Envelope::default()
    }
}

async fn put(store: &SqliteStore, batch: &[Envelope], now: Option<Timestamp>) -> Vec<Once> {
    let mut tx = store.begin().await.unwrap();
    let found = store.put(tx.connection(), batch, now).await.unwrap();
    store.commit(tx).await.unwrap();
    found
}

fn window<'a>(shards: &'a [Shard], after: Position, limit: usize) -> Window<'a> {
    Window { shards, after, holes: &[], limit }
}

fn request(holder: &str) -> ClaimRequest {
    ClaimRequest { sink: "main".into(), holder: holder.into(), lease: MINUTE, outage: None }
}

fn settlement(cursors: &[Cursor]) -> Settlement {
    Settlement {
        sink: "main".into(),
        fences: cursors.iter().map(|cursor| (cursor.shard, cursor.fence)).collect(),
        ..Settlement::default()
    }
}

fn config_text(error: Error) -> String {
    assert_eq!(error.kind(), Kind::Config, "{}", error.chain());
    error.chain()
}
