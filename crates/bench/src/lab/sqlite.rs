//! SQLite: a file of the lab's own.

use std::sync::Arc;

use oncebox_core::{Envelope, HandlerError, Message};
use oncebox_flow::{Inbox, Outbox};
use oncebox_stores::sqlite::{SqliteStore, migrate};
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, ValueRef as _};

use super::{HANDLER, Lab};
use crate::machine::TempDir;
use crate::order::{Order, new_id};

const TABLES: &str = "
    CREATE TABLE bench_order (id INTEGER PRIMARY KEY,
        customer TEXT NOT NULL, sequence INTEGER NOT NULL, amount INTEGER NOT NULL);
    CREATE TABLE bench_effect (id INTEGER PRIMARY KEY,
        customer TEXT NOT NULL, sequence INTEGER NOT NULL, amount INTEGER NOT NULL);
    CREATE TABLE bench_cursor (name TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO bench_cursor VALUES ('hand', 0)";

/// A lab on SQLite.
#[derive(Clone, Debug)]
pub(crate) struct SqliteLab {
    store: SqliteStore,
    directory: Arc<TempDir>,
}

impl SqliteLab {
    /// Makes a database file in a temporary directory.
    pub(crate) async fn create() -> Self {
        let directory = Arc::new(TempDir::new());
        let file = directory.0.join("bench.db");
        let store = SqliteStore::create(&file.to_string_lossy()).await.expect("a database file");
        migrate::up(&store).await.expect("the tables are made");
        sqlx::raw_sql(TABLES).execute(store.pool()).await.expect("the bench's tables are made");
        store.verify().await.expect("the database is durable");
        Self { store, directory }
    }

    pub(crate) fn pool(&self) -> &SqlitePool {
        self.store.pool()
    }

    /// The file, for child processes.
    pub(crate) fn url(&self) -> String {
        self.directory.0.join("bench.db").to_string_lossy().into_owned()
    }

    async fn run(&self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(self.pool()).await.expect("a statement of the bench");
    }
}

/// An inbox whose handler inserts one effect row.
pub(crate) fn inbox(store: SqliteStore) -> Inbox<SqliteStore> {
    Inbox::builder(store, "bench").on::<Order, _>(HANDLER, record).build().expect("an inbox")
}

async fn record(tx: &mut SqliteConnection, order: Order) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO bench_effect (customer, sequence, amount) VALUES (?, ?, ?)")
        .bind(order.customer)
        .bind(order.sequence)
        .bind(order.amount)
        .execute(tx)
        .await?;
    Ok(())
}

async fn place(tx: &mut SqliteConnection, order: &Order) {
    sqlx::query("INSERT INTO bench_order (customer, sequence, amount) VALUES (?, ?, ?)")
        .bind(order.customer.as_str())
        .bind(order.sequence)
        .bind(order.amount)
        .execute(tx)
        .await
        .expect("the business write");
}

impl Lab for SqliteLab {
    type Store = SqliteStore;
    const NAME: &'static str = "sqlite";

    fn store(&self) -> &SqliteStore {
        &self.store
    }

    fn inbox(&self) -> Inbox<SqliteStore> {
        inbox(self.store.clone())
    }

    async fn load(&self, rows: u64) {
        sqlx::query(
            "WITH RECURSIVE base AS (SELECT coalesce(max(position), 0) AS last FROM oncebox_outbox),
                n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
             INSERT INTO oncebox_outbox (id, source, type, ordering_key, destination, payload)
             SELECT printf('018f0000-0000-7000-8000-%012x', n + last), 'bench', ?2, 'customer-' || n % 1000,
                'bench.orders', ?3 FROM n, base",
        )
        .bind(rows.cast_signed())
        .bind(Order::NAME)
        .bind(Order::nth(1).payload())
        .execute(self.pool())
        .await
        .expect("rows are loaded");
    }

    async fn load_markers(&self, rows: u64) {
        sqlx::query(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
             INSERT INTO oncebox_marker (tenant, handler, source, id, digest, processed_at)
             SELECT '', ?2, 'bench', printf('018f0000-0000-7000-8000-%012x', n), randomblob(32),
                CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER) FROM n",
        )
        .bind(rows.cast_signed())
        .bind(HANDLER)
        .execute(self.pool())
        .await
        .expect("markers are loaded");
    }

    async fn settle_down(&self) {
        self.run("PRAGMA wal_checkpoint(TRUNCATE); ANALYZE".into()).await;
    }

    async fn rewind(&self, position: i64) {
        let shards: Vec<String> = (0..8).map(|shard| format!("('default', {shard}, {position})")).collect();
        self.run(format!(
            "UPDATE bench_cursor SET position = {position};
             DELETE FROM oncebox_relay_cursor; DELETE FROM oncebox_relay_member;
             INSERT INTO oncebox_relay_cursor (sink, shard, position) VALUES {}",
            shards.join(", ")
        ))
        .await;
    }

    async fn forget_effects(&self) {
        self.run("DELETE FROM bench_order; DELETE FROM bench_effect".into()).await;
    }

    async fn effects(&self) -> u64 {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM bench_effect")
            .fetch_one(self.pool())
            .await
            .expect("a count");
        count.unsigned_abs()
    }

    async fn put(&self, outbox: &Outbox<SqliteStore>, order: &Order) {
        let mut tx = self.pool().begin_with("BEGIN IMMEDIATE").await.expect("a transaction");
        place(&mut tx, order).await;
        outbox.put(&mut tx, order).await.expect("a put");
        tx.commit().await.expect("a commit");
    }

    async fn put_by_hand(&self, order: &Order) {
        let mut tx = self.pool().begin_with("BEGIN IMMEDIATE").await.expect("a transaction");
        place(&mut tx, order).await;
        sqlx::query(
            "INSERT INTO oncebox_outbox (id, source, type, ordering_key, destination, content_type, payload)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(new_id())
        .bind("bench")
        .bind(Order::NAME)
        .bind(order.customer.as_str())
        .bind("bench.orders")
        .bind(Order::CONTENT_TYPE)
        .bind(order.payload())
        .execute(&mut *tx)
        .await
        .expect("an insert");
        tx.commit().await.expect("a commit");
    }

    async fn drain_by_hand(&self, batch: i64, limit: u64) -> u64 {
        let mut connection = self.pool().acquire().await.expect("a connection");
        let mut position: i64 = sqlx::query_scalar("SELECT position FROM bench_cursor WHERE name = 'hand'")
            .fetch_one(&mut *connection)
            .await
            .expect("the cursor");
        let mut read = 0;
        while read < limit {
            let rows = sqlx::query(
                "SELECT position, shard, id, source, type, schema_version, tenant, ordering_key, destination,
                    subject, aggregate_type, content_type, data_schema, correlation_id, causation_id,
                    idempotency_key, traceparent, tracestate, baggage, headers, created_at, payload
                 FROM oncebox_outbox WHERE position > ? ORDER BY position LIMIT ?",
            )
            .bind(position)
            .bind(batch)
            .fetch_all(&mut *connection)
            .await
            .expect("a batch");
            let Some(last) = rows.last() else { break };
            position = last.get_unchecked(0);
            read += rows.len() as u64;
            std::hint::black_box(rows.iter().map(touch).sum::<usize>());
            sqlx::query("UPDATE bench_cursor SET position = ? WHERE name = 'hand'")
                .bind(position)
                .execute(&mut *connection)
                .await
                .expect("the cursor moves");
        }
        read
    }

    async fn receive_by_hand(&self, envelope: &Envelope) {
        let order = Order::decode(&envelope.payload).expect("an order");
        let mut tx = self.pool().begin_with("BEGIN IMMEDIATE").await.expect("a transaction");
        let done = sqlx::query(
            "INSERT INTO oncebox_marker (tenant, handler, source, id, digest, processed_at)
             VALUES ('', ?, ?, ?, ?, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
             ON CONFLICT DO NOTHING",
        )
        .bind(HANDLER)
        .bind(envelope.source.as_str())
        .bind(envelope.id.as_str())
        .bind([0_u8; 32].as_slice())
        .execute(&mut *tx)
        .await
        .expect("a marker");
        if done.rows_affected() == 1 {
            record(&mut tx, order).await.expect("an effect");
        }
        tx.commit().await.expect("a commit");
    }

    async fn durability(&self) -> String {
        let version: String =
            sqlx::query_scalar("SELECT sqlite_version()").fetch_one(self.pool()).await.expect("a version");
        format!("SQLite {version}, WAL, synchronous FULL")
    }
}

/// Looks at every column, as any use of the row would, without copying one.
fn touch(row: &SqliteRow) -> usize {
    let texts = (2..20).filter(|column| *column != 5);
    let length = |column: usize| match row.try_get_raw(column) {
        Ok(value) if !value.is_null() => row.get_unchecked::<&str, _>(column).len(),
        _ => 0,
    };
    let numbers = row.get_unchecked::<i64, _>(1).unsigned_abs() as usize
        + row.get_unchecked::<i64, _>(5).unsigned_abs() as usize
        + usize::from(row.get_unchecked::<i64, _>(20) > 0);
    numbers + texts.map(length).sum::<usize>() + row.get_unchecked::<&[u8], _>(21).len()
}
