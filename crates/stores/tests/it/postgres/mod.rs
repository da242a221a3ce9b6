//! PostgreSQL beyond the common suite: migrations, cancellation, late commits, wake-up, what errors mean.

mod claim;
mod depot;
mod log;
mod marker;
mod plan;
mod receipts;
mod relay;
mod schema;
mod transaction;
mod wakeup;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::Inspect;
use oncebox_core::log::{
    ClaimRequest, Cursor, LaneKey, MAX_HOLES, Park, Parking, Position, Settlement, Shard, Span, Window,
};
use oncebox_core::store::{Burial, Mark, Marked, Purge};
use oncebox_core::{
    Dedup, Digest, Envelope, Error, Identifier, Kind, Mailbox, Once, Retention, Store, Timestamp,
};
use oncebox_stores::postgres::{PostgresStore, migrate, pool_options};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, Executor, Row as _};

const ALL: [Shard; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

fn url(test: &str) -> Option<String> {
    let url = std::env::var("ONCEBOX_TEST_POSTGRES_URL").ok().filter(|url| !url.is_empty());
    if url.is_none() {
        assert!(std::env::var_os("ONCEBOX_NO_SKIP").is_none(), "ONCEBOX_TEST_POSTGRES_URL is not set");
        eprintln!("SKIP {test}: ONCEBOX_TEST_POSTGRES_URL is not set");
    }
    url
}

fn random_schema() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    format!("t{}_{nanos}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs `body` on a schema of its own that is dropped afterwards, come what may.
async fn on_empty<F: Future<Output = ()> + Send + 'static>(
    test: &str,
    body: impl FnOnce(PostgresStore, String) -> F,
) {
    let Some(url) = url(test) else { return };
    let schema = random_schema();
    // Who holds a lock on purpose may be stalled: only those who say so give up.
    let store = PostgresStore::connect(&url).await.unwrap().lock_wait(Duration::from_secs(30));
    let store = store.schema(Identifier::new(&schema).unwrap()).allow_unsafe_durability();
    let outcome = tokio::spawn(body(store.clone(), schema.clone())).await;
    execute(&store, &format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await;
    outcome.unwrap();
}

/// The same with tables in it.
async fn on_tables<F: Future<Output = ()> + Send + 'static>(
    test: &str,
    body: impl FnOnce(PostgresStore, String) -> F + Send + 'static,
) {
    on_empty(test, |store, schema| async move {
        migrate::up(&store).await.unwrap();
        body(store, schema).await;
    })
    .await;
}

async fn execute(store: &PostgresStore, text: &str) {
    store.pool().execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.unwrap();
}

fn envelope(id: &str) -> Envelope {
    Envelope {
        id: id.into(),
        source: "test".into(),
        kind: "thing.done.v1".into(),
        schema_version: 1,
        destination: "things".into(),
        content_type: "application/json".into(),
        payload: b"{}".to_vec(),
        ..Envelope::default()
    }
}

fn keyed(id: &str, key: &str) -> Envelope {
    Envelope { key: Some(key.into()), ..envelope(id) }
}

async fn put(store: &PostgresStore, batch: &[Envelope]) -> Vec<Once> {
    let mut tx = store.begin().await.unwrap();
    let once = store.put(&mut tx, batch, None).await.unwrap();
    store.commit(tx).await.unwrap();
    once
}

async fn read(store: &PostgresStore, after: Position, holes: &[Position]) -> Span {
    store.read(Window { shards: &ALL, after, holes, limit: 100 }).await.unwrap()
}

fn ids(span: &Span) -> Vec<&str> {
    span.rows.iter().map(|row| row.envelope.as_ref().unwrap().id.as_str()).collect()
}

/// Reads on until no hole is left; tells what appeared meanwhile.
async fn read_until_closed(store: &PostgresStore, mut span: Span) -> Vec<String> {
    let mut late = Vec::new();
    let end = Instant::now() + Duration::from_secs(20);
    while !span.holes.is_empty() {
        assert!(Instant::now() < end, "still open: {:?}", span.holes);
        span = read(store, span.through, &span.holes).await;
        late.extend(ids(&span).into_iter().map(str::to_owned));
    }
    late
}

fn request(holder: &str) -> ClaimRequest {
    ClaimRequest { sink: "s".into(), holder: holder.into(), lease: Duration::from_secs(30), outage: None }
}

fn settlement(cursors: &[Cursor]) -> Settlement {
    let fences = cursors.iter().map(|cursor| (cursor.shard, cursor.fence)).collect();
    Settlement { sink: "s".into(), fences, ..Settlement::default() }
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> Kind {
    result.unwrap_err().kind()
}

fn mark(key: &MessageKey) -> Mark<'_> {
    Mark { tenant: "", handler: "h", key, digest: Digest::of(b"body"), time: None, window: None }
}
