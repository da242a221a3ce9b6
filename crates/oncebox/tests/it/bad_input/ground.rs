//! A database of one's own to spoil, by raw SQL.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use oncebox::inspect::Inspect;
use oncebox::{Context, Dedup, Envelope, Failure, Handler, HandlerError, HandlerKey, Identifier, Mailbox};
use oncebox::{Message, Outbox, Publisher, Relay};
use oncebox_conformance::fixture::service_url;
use oncebox_stores::postgres::{PostgresStore, pool_options};
use oncebox_stores::sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;

/// A name no other test uses.
pub(super) fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    format!("bad{}_{nanos}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A folder that is gone when this is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn fresh() -> Self {
        let folder = std::env::temp_dir().join(format!("oncebox-{}", fresh_name()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A SQLite file without tables.
pub(super) async fn sqlite() -> (SqliteStore, Folder) {
    let folder = Folder::fresh();
    (SqliteStore::create(&folder.file("app.db")).await.unwrap(), folder)
}

/// A PostgreSQL schema that does not exist yet. Drop it with [`drop_schema`].
pub(super) async fn postgres(case: &str) -> Option<(PostgresStore, String)> {
    let url = service_url("ONCEBOX_TEST_POSTGRES_URL", case)?;
    let schema = fresh_name();
    let pool = pool_options().max_connections(4).connect(&url).await.unwrap();
    Some((PostgresStore::new(pool).schema(Identifier::new(schema.as_str()).unwrap()), schema))
}

pub(super) async fn drop_schema(store: &PostgresStore, schema: &str) {
    run(store.pool(), &format!("DROP SCHEMA IF EXISTS \"{schema}\" CASCADE")).await;
}

/// Runs statements as they stand, on whichever connection is free.
pub(super) async fn run<DB: sqlx::Database>(pool: &sqlx::Pool<DB>, sql: &str)
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    run_on(&mut *pool.acquire().await.unwrap(), sql).await;
}

/// Runs statements as they stand, on this connection.
pub(super) async fn run_on<C>(connection: &mut C, sql: &str)
where
    for<'c> &'c mut C: sqlx::Executor<'c>,
{
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.unwrap();
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) text: String,
}

impl Message for Note {
    const NAME: &'static str = "note.v1";
    const DESTINATION: Option<&'static str> = Some("notes");
}

pub(super) fn note(text: impl Into<String>) -> Note {
    Note { text: text.into() }
}

/// Takes notes and does nothing with them.
pub(super) struct Reader;

impl<Tx: Send> Handler<Tx> for Reader {
    type Message = Note;

    fn key(&self) -> HandlerKey {
        HandlerKey::new("read")
    }

    async fn handle(&self, _cx: &mut Context<'_, Tx>, _note: Note) -> Result<(), HandlerError> {
        Ok(())
    }
}

/// A destination that keeps what it gets.
#[derive(Clone, Default)]
pub(super) struct Caught(Arc<Mutex<Vec<Envelope>>>);

impl Caught {
    pub(super) fn ids(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|envelope| envelope.id.clone()).collect()
    }
}

impl Publisher for Caught {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        self.0.lock().unwrap().extend_from_slice(batch);
        vec![Ok(()); batch.len()]
    }
}

/// Puts one note and commits it.
pub(super) async fn put<S: Mailbox>(store: &S, text: &str) -> oncebox::Result<String> {
    let mut tx = store.begin().await?;
    let id = Outbox::new(store.clone()).put(&mut tx, &note(text)).await?;
    store.commit(tx).await?;
    Ok(id)
}

/// Relays until nothing moves.
pub(super) async fn drain<S: Mailbox>(relay: &mut Relay<S, Caught>) {
    while relay.step().await.unwrap().moved() {}
}

/// The whole path works: a put arrives, and nothing is pending.
pub(super) async fn assert_works<S: Mailbox + Dedup + Inspect>(store: &S) {
    let caught = Caught::default();
    let mut relay = Relay::builder(store.clone(), caught.clone()).sink("check").build().unwrap();
    let id = put(store, "works").await.unwrap();
    drain(&mut relay).await;
    assert!(caught.ids().contains(&id));
    let inbox = oncebox::Inbox::builder(store.clone(), "notes").handler(Reader).build().unwrap();
    let envelope = Envelope { source: "s".into(), ..Envelope::of(id, &note("works")).unwrap() };
    let outcome = inbox.receive(envelope, 1).await.single().unwrap();
    assert!(matches!(outcome, oncebox::Outcome::Done { .. }), "{outcome:?}");
}
