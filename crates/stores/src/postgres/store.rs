//! The store itself: its pool and settings, and how transactions open and close.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncebox_core::{Error, Identifier, Kind, Result, Store, Timestamp, Transaction};
use oncebox_flow::Shield;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, Postgres, Row as _, SqlSafeStr, SqlStr,
};
use tokio::sync::Semaphore;

use super::error::{self, IN_FAILED_TRANSACTION, failed};
use super::holes::Holes;
use super::hotline::{Hotline, Question};
use super::migrate;
use super::rank::Rank;
use super::row::Time;

/// The schema the statements in `sql/` are written for.
pub(super) const DEFAULT_SCHEMA: &str = "oncebox";

const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_CONNECTIONS: u32 = 10;
/// A receipt takes a line for one round trip and one commit.
const RECEIPT_LINES: usize = 8;

/// Batches that are written down as done at a time. All of them write at the ends of the same indexes, and eight
/// waited for each other for a third of their time.
const FINISHING: usize = 2;

/// Statements for a schema other than the default, by the place of their text in the binary.
type Texts = HashMap<(usize, usize), Arc<str>>;

/// A PostgreSQL database that keeps oncebox's tables in a schema of their own.
/// Cheap to clone; clones share the pool.
#[derive(Clone)]
pub struct PostgresStore {
    pool: PgPool,
    settings: Arc<Settings>,
    texts: Arc<Mutex<Texts>>,
    pub(super) holes: Arc<Mutex<Holes>>,
    /// What leases are renewed on, and nothing else.
    pub(super) renewals: Arc<Hotline>,
    receipts: Arc<Hotline>,
    /// Whose turn it is to write down a batch.
    pub(super) finishing: Arc<Semaphore>,
    /// Connections that stand ready for claims.
    pub(super) rank: Arc<Rank>,
}

#[derive(Clone)]
struct Settings {
    schema: String,
    lock_wait: Duration,
    idle_timeout: Duration,
    unsafe_durability: bool,
    /// Whether the pool has no habits of the caller's to respect.
    owns_pool: bool,
    /// One simple query opens a transaction and bounds it.
    begin: SqlStr,
    /// The same after a commit.
    commit_and_begin: SqlStr,
}

impl PostgresStore {
    /// A store on a pool of the caller's own. Build that pool from
    /// [`pool_options`]: it is safe against transactions that are dropped
    /// while they open.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let mut settings = Settings {
            schema: DEFAULT_SCHEMA.to_owned(),
            lock_wait: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(60),
            unsafe_durability: false,
            owns_pool: false,
            begin: SqlStr::from_static(""),
            commit_and_begin: SqlStr::from_static(""),
        };
        settings.write_texts();
        Self {
            pool,
            settings: Arc::new(settings),
            texts: Arc::default(),
            holes: Arc::default(),
            renewals: Arc::new(Hotline::new(1)),
            receipts: Arc::new(Hotline::new(RECEIPT_LINES)),
            finishing: Arc::new(Semaphore::new(FINISHING)),
            rank: Arc::default(),
        }
    }

    /// Connects, with a pool of its own.
    ///
    /// # Errors
    /// [`Kind::Config`] if the URL is malformed or the server refuses the
    /// login, [`Kind::Unavailable`] if it does not answer.
    pub async fn connect(url: &str) -> Result<Self> {
        let options = PgConnectOptions::from_str(url)
            .map_err(|error| Error::new(Kind::Config, "cannot read the database url").because(error))?
            .application_name("oncebox");
        // The pool would hide why it cannot connect behind its own timeout.
        let first = tokio::time::timeout(ACQUIRE_TIMEOUT, PgConnection::connect_with(&options));
        let first = first.await.unwrap_or(Err(sqlx::Error::PoolTimedOut));
        let close = first.map_err(|cause| unreachable_server(&options, cause))?.close();
        close.await.map_err(failed("cannot close a connection"))?;
        let pool = pool_options().max_connections(MAX_CONNECTIONS).acquire_timeout(ACQUIRE_TIMEOUT);
        Ok(Self::with_pool(pool, options))
    }

    /// A store with a pool of its own, set up by the caller; start from
    /// [`pool_options`]. Connects when it is first used.
    ///
    /// Its own transactions begin on an idle connection without asking first
    /// whether it is alive: BEGIN tells. They do not run `before_acquire`. The
    /// gate's receipts go over up to eight connections beside the pool, opened
    /// when they are needed; they run no hook of the pool's. Claims keep up to
    /// half of the pool's connections ready for the next one, for a second or
    /// two and only while the pool has others to lend; in between
    /// `after_release` does not run. Statements are not logged by the driver:
    /// replies may stand in their texts.
    #[must_use]
    pub fn with_pool(pool: PgPoolOptions, options: PgConnectOptions) -> Self {
        let options = options.disable_statement_logging();
        Self::new(pool.connect_lazy_with(options)).with(|settings| settings.owns_pool = true)
    }

    /// The pool.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Keeps the tables in another schema than `oncebox`.
    #[must_use]
    pub fn schema(self, schema: Identifier) -> Self {
        self.with(|settings| schema.as_str().clone_into(&mut settings.schema))
    }

    /// How long a statement waits for a lock, above all a duplicate for the
    /// marker of the copy that is being handled. 2 seconds unless set.
    #[must_use]
    pub fn lock_wait(self, wait: Duration) -> Self {
        self.with(|settings| settings.lock_wait = wait)
    }

    /// How long a transaction may stay open without a statement before the
    /// server ends it and frees its locks. 60 seconds unless set.
    #[must_use]
    pub fn idle_timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.idle_timeout = timeout)
    }

    /// Accepts a server that may forget commits. For tests on throw-away servers.
    #[must_use]
    pub fn allow_unsafe_durability(self) -> Self {
        self.with(|settings| settings.unsafe_durability = true)
    }

    /// Checks at start-up that the server keeps what it commits and that the
    /// tables are what this build expects.
    ///
    /// # Errors
    /// [`Kind::Config`] with what to do about it.
    pub async fn verify(&self) -> Result<()> {
        self.verify_server().await?;
        self.verify_schema().await
    }

    /// The part of [`verify`](Self::verify) that is about the tables alone.
    ///
    /// # Errors
    /// [`Kind::Config`] with what to do about it.
    pub async fn verify_schema(&self) -> Result<()> {
        migrate::verify(self).await
    }

    async fn verify_server(&self) -> Result<()> {
        let (fsync, commit, read_only): (String, String, String) =
            sqlx::query_as(self.sql(include_str!("sql/server.sql")))
                .fetch_one(&self.pool)
                .await
                .map_err(failed("cannot read the server's settings"))?;
        let refuse = |reason| Err(Error::new(Kind::Config, reason));
        if read_only == "on" {
            return refuse("the database is read-only (a standby?); oncebox needs the primary");
        }
        if self.settings.unsafe_durability {
            return Ok(());
        }
        if fsync == "off" {
            return refuse(
                "fsync is off: this server loses committed messages when it crashes; set fsync = on",
            );
        }
        if commit == "off" {
            return refuse(
                "synchronous_commit is off: a crash loses messages that were already acknowledged; set synchronous_commit = on",
            );
        }
        Ok(())
    }

    /// A future dropped inside sqlx's begin leaves the connection in an open
    /// transaction (sqlx#4385). A shielded one always runs to the end, and a
    /// transaction nobody waits for is rolled back where it is dropped.
    pub(super) async fn begin_with(&self, text: SqlStr) -> Result<sqlx::Transaction<'static, Postgres>> {
        let (pool, owns_pool) = (self.pool.clone(), self.settings.owns_pool);
        Shield::new(async move {
            // A connection that died while it was idle says so here; the pool then finds a live one.
            if owns_pool && let Ok(Some(begun)) = pool.try_begin_with(text.clone()).await {
                return Ok(begun);
            }
            pool.begin_with(text).await.map_err(failed("cannot begin a transaction"))
        })
        .await
    }

    /// Asks about receipts. A pool of the caller's may have habits, such as a role that each of its
    /// connections takes on: there its connections are used.
    pub(super) async fn on_receipts<Q: Question>(&self, question: &Q) -> Result<Q::Answer> {
        if self.settings.owns_pool {
            return self.receipts.ask(self, question).await;
        }
        let mut connection = self.pool.acquire().await.map_err(failed("no connection for the gate"))?;
        question.ask(&mut connection).await
    }

    /// Whether the pool has no habits of the caller's to respect.
    pub(super) fn owns_pool(&self) -> bool {
        self.settings.owns_pool
    }

    /// What opens a transaction and bounds it.
    pub(super) fn begin_text(&self) -> &str {
        self.settings.begin.as_str()
    }

    pub(super) fn schema_name(&self) -> &str {
        &self.settings.schema
    }

    /// A statement for this store's schema. For the default schema that is the
    /// text as it stands in the binary.
    pub(super) fn sql(&self, text: &'static str) -> SqlStr {
        if self.settings.schema == DEFAULT_SCHEMA {
            return text.into_sql_str();
        }
        let place = (text.as_ptr().addr(), text.len());
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let adapted = texts.entry(place).or_insert_with(|| self.adapted(text).into());
        // The schema passed `Identifier::new`.
        AssertSqlSafe(Arc::clone(adapted)).into_sql_str()
    }

    /// The text with this store's schema in it.
    pub(super) fn adapted(&self, text: &str) -> String {
        text.replace("oncebox.", &format!("{}.", self.quoted_schema()))
    }

    /// The schema's name as SQL text: `user` and the like are names only in quotes.
    pub(super) fn quoted_schema(&self) -> String {
        match self.schema_name() {
            DEFAULT_SCHEMA => DEFAULT_SCHEMA.to_owned(),
            other => format!("\"{other}\""),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        change(settings);
        settings.write_texts();
        // All of these are about one schema.
        let rank = Arc::new(self.rank.beside());
        Self { texts: Arc::default(), holes: Arc::default(), rank, ..self }
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("schema", &self.settings.schema).finish_non_exhaustive()
    }
}

impl Store for PostgresStore {
    type Tx = PgConnection;
    type Begun = sqlx::Transaction<'static, Postgres>;

    async fn begin(&self) -> Result<Self::Begun> {
        self.begin_with(self.settings.begin.clone()).await
    }

    async fn commit(&self, begun: Self::Begun) -> Result<()> {
        Shield::new(commit(begun)).await
    }

    async fn commit_sound(&self, begun: Self::Begun, goes_on: bool) -> Result<Option<Self::Begun>> {
        let again = goes_on.then(|| self.settings.commit_and_begin.clone());
        Shield::new(commit_sound(begun, again)).await
    }

    async fn rollback(&self, begun: Self::Begun) -> Result<()> {
        begun.rollback().await.map_err(failed("cannot roll back"))
    }

    async fn verify(&self) -> Result<()> {
        PostgresStore::verify(self).await
    }

    async fn clock(&self, tx: &mut PgConnection) -> Result<Timestamp> {
        let clock = sqlx::query_scalar(include_str!("sql/clock.sql")).fetch_one(tx);
        clock.await.map(|Time(now)| now).map_err(failed("cannot read the clock"))
    }

    fn classify(&self, error: &(dyn StdError + 'static)) -> Option<Kind> {
        error::classify(error)
    }
}

impl Transaction<PostgresStore> for sqlx::Transaction<'_, Postgres> {
    fn connection(&mut self) -> &mut PgConnection {
        self
    }
}

/// A nested transaction of the driver that is dropped while it begins rolls
/// back all of it. What came after that would stand alone, and there would be
/// nothing to commit.
pub(super) fn still_open(connection: &PgConnection) -> Result<()> {
    match connection.is_in_transaction() {
        true => Ok(()),
        false => {
            let text = "the transaction was rolled back inside, by a nested one that was dropped; \
                        nothing was committed";
            Err(Error::new(Kind::Rejected, text))
        }
    }
}

/// PostgreSQL answers COMMIT of a doomed transaction with ROLLBACK and no
/// error, and sqlx does not look; so ask first.
async fn commit(mut begun: sqlx::Transaction<'static, Postgres>) -> Result<()> {
    still_open(&begun)?;
    if let Err(cause) = begun.execute(sqlx::raw_sql("SELECT 1")).await {
        let code = cause.as_database_error().and_then(|error| error.code());
        if code.as_deref() != Some(IN_FAILED_TRANSACTION) {
            return Err(failed("the transaction broke before its commit")(cause));
        }
        begun.rollback().await.map_err(failed("cannot roll back"))?;
        let text = "an earlier statement had failed; nothing was committed";
        return Err(Error::new(Kind::Rejected, text).because(cause));
    }
    begun.commit().await.map_err(error::commit_failed)
}

/// Commits, and with `again` begins the next transaction in the same round
/// trip. The connection need not go through the pool, which would ask whether
/// it is alive.
async fn commit_sound(
    mut begun: sqlx::Transaction<'static, Postgres>,
    again: Option<SqlStr>,
) -> Result<Option<sqlx::Transaction<'static, Postgres>>> {
    match again {
        Some(text) => {
            begun.execute(sqlx::raw_sql(text)).await.map_err(error::commit_and_begin_failed)?;
            Ok(Some(begun))
        }
        None => begun.commit().await.map(|()| None).map_err(error::commit_failed),
    }
}

/// Pool options with which no connection comes out of the pool inside a
/// transaction, however the code that used it before was cancelled. The check
/// also tells whether the connection is alive, so it takes the place of the
/// pool's own and costs nothing more.
pub fn pool_options() -> PgPoolOptions {
    PgPoolOptions::new().test_before_acquire(false).before_acquire(|connection, _| {
        Box::pin(async move {
            // Outside a transaction the two are equal, if asked in one message. A
            // plain ROLLBACK would make the server warn every time.
            let asked = sqlx::raw_sql("SELECT now() = statement_timestamp()").fetch_one(connection).await;
            let is_outside: Result<bool, _> = asked.and_then(|row| row.try_get(0));
            // Closing the connection is what surely ends the transaction.
            Ok(is_outside.unwrap_or(false))
        })
    })
}

impl Settings {
    fn write_texts(&mut self) {
        // To PostgreSQL zero means "wait for ever".
        let millis = |wait: Duration| wait.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{}ms'; \
             SET LOCAL idle_in_transaction_session_timeout = '{}ms'",
            millis(self.lock_wait),
            millis(self.idle_timeout),
        );
        // Two numbers are all that is not written here.
        let text = |text: String| AssertSqlSafe(Arc::<str>::from(text)).into_sql_str();
        self.commit_and_begin = text(format!("COMMIT; {begin}"));
        self.begin = text(begin);
    }
}

/// Says where, without the user's name and password.
fn unreachable_server(options: &PgConnectOptions, cause: sqlx::Error) -> Error {
    let database = options.get_database().unwrap_or("(default)");
    let (host, port) = (options.get_host(), options.get_port());
    let kind = error::classify(&cause).unwrap_or(Kind::Unavailable);
    Error::new(kind, format!("cannot connect to database {database} at {host}:{port}")).because(cause)
}
