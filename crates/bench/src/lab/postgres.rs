//! PostgreSQL: a database of the lab's own, so that nobody else's transactions
//! hold its dead rows.

use std::str::FromStr;

use oncebox_core::{Envelope, HandlerError, Message};
use oncebox_flow::{Inbox, Outbox};
use oncebox_stores::postgres::{PostgresStore, migrate, pool_options};
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row as _};

use super::{HANDLER, Lab};
use crate::order::{Order, new_id};

const CONNECTIONS: u32 = 20;
const TABLES: &str = "
    CREATE TABLE bench_key (key bytea PRIMARY KEY, status integer, reply bytea);
    CREATE TABLE bench_order (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer text NOT NULL, sequence bigint NOT NULL, amount bigint NOT NULL);
    CREATE TABLE bench_effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer text NOT NULL, sequence bigint NOT NULL, amount bigint NOT NULL);
    CREATE TABLE bench_cursor (name text PRIMARY KEY, position bigint NOT NULL) WITH (fillfactor = 20);
    INSERT INTO bench_cursor VALUES ('hand', 0)";

/// A lab on PostgreSQL.
#[derive(Clone, Debug)]
pub(crate) struct PostgresLab {
    store: PostgresStore,
    server: PgConnectOptions,
    database: String,
}

impl PostgresLab {
    /// Makes a database on the server of `url`.
    pub(crate) async fn create(url: &str) -> Self {
        let server = PgConnectOptions::from_str(url).expect("a PostgreSQL url").disable_statement_logging();
        let database = format!("oncebox_bench_{}", uuid::Uuid::now_v7().simple());
        let mut admin = PgConnection::connect_with(&server).await.expect("the server answers");
        let make = format!("CREATE DATABASE {database}");
        sqlx::raw_sql(AssertSqlSafe(make)).execute(&mut admin).await.expect("the role may make a database");
        let pool = pool_options().max_connections(CONNECTIONS).min_connections(10);
        let store = PostgresStore::with_pool(pool, server.clone().database(&database));
        migrate::up(&store).await.expect("the tables are made");
        sqlx::raw_sql(TABLES).execute(store.pool()).await.expect("the bench's tables are made");
        store.verify().await.expect("the database is durable");
        Self { store, server, database }
    }

    /// Drops the database.
    pub(crate) async fn drop(self) {
        self.pool().close().await;
        let mut admin = PgConnection::connect_with(&self.server).await.expect("the server answers");
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.database);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.expect("the database goes");
    }

    pub(crate) fn pool(&self) -> &PgPool {
        self.store.pool()
    }

    /// How to reach this database, for other clients.
    pub(crate) fn options(&self) -> PgConnectOptions {
        self.server.clone().database(&self.database)
    }

    /// The address of this database, for child processes.
    pub(crate) fn url(&self) -> String {
        self.options().to_url_lossy().to_string()
    }

    /// A transaction that sees the database as it is now until it is dropped.
    /// It reads no table: a lock on one of ours would stop the bench itself.
    pub(crate) async fn hold_snapshot(&self) -> PgConnection {
        let mut connection = PgConnection::connect_with(&self.options()).await.expect("a connection");
        let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
        sqlx::raw_sql(hold).execute(&mut connection).await.expect("a snapshot");
        let pid: i32 =
            sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await.expect("a pid");
        // Asked from elsewhere: only an idle holder that still has a horizon keeps dead rows.
        let holds: bool =
            sqlx::query_scalar("SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE pid = $1")
                .bind(pid)
                .fetch_one(self.pool())
                .await
                .expect("the holder is listed");
        assert!(holds, "the transaction holds no snapshot, so this would measure nothing");
        connection
    }

    /// Adds rows to the log; tells the position before the first of them.
    pub(crate) async fn append(&self, rows: u64) -> i64 {
        let last = sqlx::query_scalar("SELECT coalesce(max(position), 0) FROM oncebox.outbox");
        let last: i64 = last.fetch_one(self.pool()).await.expect("the last position");
        if rows > 0 {
            self.load(rows).await;
        }
        last
    }

    /// The business write alone.
    pub(crate) async fn place(&self, tx: &mut PgConnection, order: &Order) {
        place(tx, order).await;
    }

    /// The effect alone.
    pub(crate) async fn record(&self, tx: &mut PgConnection, order: Order) {
        record(tx, order).await.expect("an effect");
    }

    /// Empties the durable inbox, with its markers and effects.
    pub(crate) async fn forget_inbox(&self) {
        self.run(
            "TRUNCATE oncebox.message, oncebox.delivery, oncebox.finished, oncebox.effect, oncebox.marker,
                bench_order, bench_effect",
        )
        .await;
    }

    /// Deliveries that are done.
    pub(crate) async fn done(&self) -> u64 {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM oncebox.finished")
            .fetch_one(self.pool())
            .await
            .expect("a count");
        count.unsigned_abs()
    }

    /// Adds completed deliveries with their messages and markers, as if so
    /// many messages had been handled one after the other until now.
    pub(crate) async fn load_done(&self, rows: u64) {
        sqlx::query(
            "WITH past AS (
                SELECT format('018f0000-0000-7000-8000-%s', lpad(to_hex(n), 12, '0')) AS id,
                    clock_timestamp() - ($1 - n) * interval '1 millisecond' AS at
                FROM generate_series(1, $1) AS n ORDER BY n),
             message AS (
                INSERT INTO oncebox.message
                    (scope, channel, tenant, source, id, type, digest, received_at, attributes, payload)
                SELECT '', 'bench', '', 'bench', id, $2, $3, at, $4, $5 FROM past
                RETURNING number, id, digest, received_at),
             marker AS (
                INSERT INTO oncebox.marker (tenant, handler, source, id, digest, processed_at)
                SELECT '', $6, 'bench', id, $3, at FROM past)
             INSERT INTO oncebox.finished (number, message, scope, handler, tenant, key_source, key_id, digest,
                fence, attempts, generation, history, ended_at)
             SELECT nextval(pg_get_serial_sequence('oncebox.delivery', 'number')), number, '', $6, '', 'bench', id,
                digest, 1, 1, 0, '[]', received_at
             FROM message",
        )
        .bind(rows.cast_signed())
        .bind(Order::NAME)
        .bind([0_u8; 32].as_slice())
        .bind(r#"{"specversion":"1.0","type":"bench.order.v1","source":"bench"}"#)
        .bind(Order::nth(1).payload())
        .bind(HANDLER)
        .execute(self.pool())
        .await
        .expect("a past is loaded");
    }

    async fn run(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(self.pool()).await.expect(sql);
    }
}

/// An inbox whose handler inserts one effect row.
pub(crate) fn inbox(store: PostgresStore) -> Inbox<PostgresStore> {
    Inbox::builder(store, "bench").on::<Order, _>(HANDLER, record).build().expect("an inbox")
}

async fn record(tx: &mut PgConnection, order: Order) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO bench_effect (customer, sequence, amount) VALUES ($1, $2, $3)")
        .bind(order.customer)
        .bind(order.sequence)
        .bind(order.amount)
        .execute(tx)
        .await?;
    Ok(())
}

async fn place(tx: &mut PgConnection, order: &Order) {
    sqlx::query("INSERT INTO bench_order (customer, sequence, amount) VALUES ($1, $2, $3)")
        .bind(&order.customer)
        .bind(order.sequence)
        .bind(order.amount)
        .execute(tx)
        .await
        .expect("the business write");
}

impl Lab for PostgresLab {
    type Store = PostgresStore;
    const NAME: &'static str = "postgres";

    fn store(&self) -> &PostgresStore {
        &self.store
    }

    fn inbox(&self) -> Inbox<PostgresStore> {
        inbox(self.store.clone())
    }

    async fn load(&self, rows: u64) {
        sqlx::query(
            "INSERT INTO oncebox.outbox (id, source, type, ordering_key, destination, payload)
             SELECT format('018f0000-0000-7000-8000-%s', lpad(to_hex(n + base.last), 12, '0')), 'bench', $2,
                'customer-' || n % 1000, 'bench.orders', $3
             FROM generate_series(1, $1) AS n,
                (SELECT coalesce(max(position), 0) AS last FROM oncebox.outbox) AS base
             ORDER BY n",
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
            "INSERT INTO oncebox.marker (tenant, handler, source, id, digest, processed_at)
             SELECT '', $2, 'bench', format('018f0000-0000-7000-8000-%s', lpad(to_hex(n), 12, '0')),
                decode(repeat('ab', 32), 'hex'), clock_timestamp()
             FROM generate_series(1, $1) AS n",
        )
        .bind(rows.cast_signed())
        .bind(HANDLER)
        .execute(self.pool())
        .await
        .expect("markers are loaded");
    }

    async fn settle_down(&self) {
        self.run("VACUUM (ANALYZE)").await;
    }

    async fn rewind(&self, position: i64) {
        sqlx::query("UPDATE bench_cursor SET position = $1")
            .bind(position)
            .execute(self.pool())
            .await
            .expect("the cursor moves");
        self.run("DELETE FROM oncebox.relay_cursor; DELETE FROM oncebox.relay_member").await;
        sqlx::query(
            "INSERT INTO oncebox.relay_cursor (sink, shard, position)
             SELECT 'default', n, $1 FROM generate_series(0, 7) AS n",
        )
        .bind(position)
        .execute(self.pool())
        .await
        .expect("the cursors are made");
    }

    async fn forget_effects(&self) {
        self.run("TRUNCATE bench_order, bench_effect").await;
    }

    async fn effects(&self) -> u64 {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM bench_effect")
            .fetch_one(self.pool())
            .await
            .expect("a count");
        count.unsigned_abs()
    }

    async fn put(&self, outbox: &Outbox<PostgresStore>, order: &Order) {
        let mut tx = self.pool().begin().await.expect("a transaction");
        place(&mut tx, order).await;
        outbox.put(&mut tx, order).await.expect("a put");
        tx.commit().await.expect("a commit");
    }

    async fn put_by_hand(&self, order: &Order) {
        let mut tx = self.pool().begin().await.expect("a transaction");
        place(&mut tx, order).await;
        sqlx::query(
            "INSERT INTO oncebox.outbox (id, source, type, ordering_key, destination, content_type, payload)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(new_id())
        .bind("bench")
        .bind(Order::NAME)
        .bind(&order.customer)
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
                    idempotency_key, traceparent, tracestate, baggage, headers::text, created_at, payload
                 FROM oncebox.outbox WHERE position > $1 ORDER BY position LIMIT $2",
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
            sqlx::query("UPDATE bench_cursor SET position = $1 WHERE name = 'hand'")
                .bind(position)
                .execute(&mut *connection)
                .await
                .expect("the cursor moves");
        }
        read
    }

    async fn receive_by_hand(&self, envelope: &Envelope) {
        let order = Order::decode(&envelope.payload).expect("an order");
        let mut tx = self.pool().begin().await.expect("a transaction");
        let done = sqlx::query(
            "INSERT INTO oncebox.marker (tenant, handler, source, id, digest, processed_at)
             VALUES ('', $1, $2, $3, $4, clock_timestamp()) ON CONFLICT DO NOTHING",
        )
        .bind(HANDLER)
        .bind(&envelope.source)
        .bind(&envelope.id)
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
        let (version, fsync, commit, buffers): (String, String, String, String) = sqlx::query_as(
            "SELECT current_setting('server_version'), current_setting('fsync'),
                current_setting('synchronous_commit'), current_setting('shared_buffers')",
        )
        .fetch_one(self.pool())
        .await
        .expect("the settings");
        format!("PostgreSQL {version}, fsync {fsync}, synchronous_commit {commit}, shared_buffers {buffers}")
    }
}

/// Looks at every column, as any use of the row would, without copying one.
fn touch(row: &sqlx::postgres::PgRow) -> usize {
    let texts = (2..20).filter(|column| *column != 5);
    let length = |column| row.get_unchecked::<Option<&str>, _>(column).map_or(0, str::len);
    let numbers = row.get_unchecked::<i16, _>(1).unsigned_abs() as usize
        + row.get_unchecked::<i32, _>(5).unsigned_abs() as usize
        + usize::from(row.get_unchecked::<i64, _>(20) > 0);
    numbers + texts.map(length).sum::<usize>() + row.get_unchecked::<&[u8], _>(21).len()
}
