//! The store: a pool, a table prefix, and how transactions begin and end.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use oncebox_core::{Error, Identifier, Kind, Result, Store, Timestamp, Transaction};
use oncebox_flow::Shield;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Connection, SqlSafeStr, SqlStr, Sqlite};

use super::clerk::Clerk;
use super::error::{begin_failed, classify, commit_failed, failed};
use super::migrate;

/// The prefix that statements and migrations are written with.
pub(super) const DEFAULT_PREFIX: &str = "oncebox";
/// Takes the write lock at the start, where one can still wait for it.
const BEGIN: &str = "BEGIN IMMEDIATE";
/// Readers run in parallel; more connections than this only queue for the write lock.
const MAX_CONNECTIONS: u32 = 8;
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Rows SQLite's thread may read ahead; with few it and the reader keep waking each other.
const ROW_BUFFER: usize = 512;

/// oncebox in a SQLite database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    pool: SqlitePool,
    prefix: Cow<'static, str>,
    /// Waits for the write lock as long as it was told to, instead of as long as the connection would.
    begin_within: Option<SqlStr>,
    allow_unsafe_durability: bool,
    /// Writes receipts, many in one commit.
    pub(super) clerk: Clerk,
}

impl SqliteStore {
    /// A store on a pool of the caller's own. No I/O; [`verify`](Self::verify)
    /// tells whether the pool's settings are safe.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self {
            pool,
            prefix: Cow::Borrowed(DEFAULT_PREFIX),
            begin_within: None,
            allow_unsafe_durability: false,
            clerk: Clerk::default(),
        }
    }

    /// Opens an existing database given as `sqlite:path`, `sqlite://path` or a
    /// path, with safe settings.
    ///
    /// # Errors
    /// [`Kind::Config`] if there is no such file, [`Kind::Unavailable`] if it cannot be opened.
    pub async fn connect(url: &str) -> Result<Self> {
        let options = options(url)?;
        let file = options.get_filename();
        if !is_in_memory(file) && !file.exists() {
            let text = format!(
                "database file {0} does not exist; run `oncebox migrate up --db {0}`",
                file.display()
            );
            return Err(Error::new(Kind::Config, text));
        }
        Self::open(options).await
    }

    /// Like [`connect`](Self::connect), but makes the file if there is none.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] if it cannot be made or opened.
    pub async fn create(url: &str) -> Result<Self> {
        Self::open(options(url)?.create_if_missing(true)).await
    }

    async fn open(options: SqliteConnectOptions) -> Result<Self> {
        let pool =
            pool_options().connect_with(options).await.map_err(failed("cannot open the SQLite database"))?;
        Ok(Self::new(pool))
    }

    /// Uses tables named `{prefix}_outbox` and so on instead of `oncebox_outbox`.
    #[must_use]
    pub fn prefix(mut self, prefix: Identifier) -> Self {
        self.prefix = Cow::Owned(prefix.as_str().to_owned());
        // What others want written is for other tables.
        self.clerk = Clerk::default();
        self
    }

    /// How long a transaction waits for the write lock at its start, which is
    /// where a duplicate waits too. Without it, the connection's own busy
    /// timeout holds (5 seconds on pools made here). Other users of the pool
    /// are not affected.
    #[must_use]
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        let millis = wait.as_millis().min(i32::MAX.unsigned_abs().into());
        let text = format!("PRAGMA busy_timeout = {millis}; {BEGIN}");
        self.begin_within = Some(AssertSqlSafe(text).into_sql_str());
        self.clerk = Clerk::default();
        self
    }

    /// Lets [`verify`](Self::verify) pass although a power cut could undo
    /// commits, or the database is in memory. For tests.
    #[must_use]
    pub fn allow_unsafe_durability(mut self) -> Self {
        self.allow_unsafe_durability = true;
        self
    }

    /// The pool underneath.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// Checks that tables, schema and settings are what this build needs.
    ///
    /// # Errors
    /// [`Kind::Config`], saying what to do.
    pub async fn verify(&self) -> Result<()> {
        self.verify_schema().await?;
        migrate::verify_settings(self, !self.allow_unsafe_durability).await
    }

    /// The part of [`verify`](Self::verify) that is about the tables alone.
    ///
    /// # Errors
    /// [`Kind::Config`], saying what to do.
    pub async fn verify_schema(&self) -> Result<()> {
        migrate::verify_schema(self).await
    }

    /// A statement with the table names of this store. With the default
    /// prefix, which is the hot case, it costs nothing.
    pub(super) fn sql(&self, text: &'static str) -> SqlStr {
        if self.prefix == DEFAULT_PREFIX {
            return SqlStr::from_static(text);
        }
        // Sound because a prefix is a checked `Identifier`.
        AssertSqlSafe(self.named(text)).into_sql_str()
    }

    /// `text` with the prefix of this store in all table names.
    pub(super) fn named(&self, text: &str) -> String {
        text.replace("oncebox_", &format!("{}_", self.prefix))
    }

    pub(super) fn prefix_name(&self) -> &str {
        &self.prefix
    }
}

/// Options for a pool that survives what SQLite does to transactions: a
/// connection that comes back with one still open is rolled back or closed.
#[must_use]
pub fn pool_options() -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(MAX_CONNECTIONS)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .after_release(|connection, _| Box::pin(is_reusable(connection)))
}

/// A dropped transaction queues its rollback, so a look after a round trip is
/// a look after the rollback. SQLite ends a transaction by itself when the
/// disk is full, and the driver then believes for ever that it is open.
async fn is_reusable(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    if !connection.is_in_transaction() {
        return Ok(true);
    }
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}

fn options(url: &str) -> Result<SqliteConnectOptions> {
    let options = if url.starts_with("sqlite:") {
        SqliteConnectOptions::from_str(url)
            .map_err(|error| Error::new(Kind::Config, "the SQLite URL cannot be understood").because(error))?
    } else if url.contains("://") {
        // Not quoted: another database's URL may carry a password.
        return Err(Error::new(Kind::Config, "not a SQLite database: use sqlite:path or a path"));
    } else {
        SqliteConnectOptions::new().filename(url)
    };
    Ok(options
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .row_buffer_size(ROW_BUFFER)
        .foreign_keys(true))
}

fn is_in_memory(file: &Path) -> bool {
    file.as_os_str() == ":memory:" || file.to_string_lossy().starts_with("file:sqlx-in-memory")
}

/// Begins under another busy timeout and gives the connection its own back,
/// whether it could begin or not: the pool hands it to others.
async fn begin_within_wait(
    pool: &SqlitePool,
    begin: SqlStr,
) -> sqlx::Result<sqlx::Transaction<'static, Sqlite>> {
    let mut connection = pool.acquire().await?;
    let own: i64 = sqlx::query_scalar("PRAGMA busy_timeout").fetch_one(&mut *connection).await?;
    let give_back = AssertSqlSafe(format!("PRAGMA busy_timeout = {own}")).into_sql_str();
    if let Err(error) = sqlx::raw_sql(begin).execute(&mut *connection).await {
        if sqlx::raw_sql(give_back).execute(&mut *connection).await.is_err() {
            connection.close_on_drop();
        }
        return Err(error);
    }
    // The transaction is open already; this is how the driver learns of it.
    sqlx::Transaction::begin(connection, Some(give_back)).await
}

impl Store for SqliteStore {
    type Tx = SqliteConnection;
    type Begun = sqlx::Transaction<'static, Sqlite>;

    async fn begin(&self) -> Result<Self::Begun> {
        let (pool, begin_within) = (self.pool.clone(), self.begin_within.clone());
        // A begin dropped half way can leave the connection inside a
        // transaction. Shielded it ends, and what nobody waits for rolls back.
        let begun = Shield::new(async move {
            match begin_within {
                None => pool.begin_with(BEGIN).await,
                Some(begin) => begin_within_wait(&pool, begin).await,
            }
        });
        begun.await.map_err(begin_failed)
    }

    async fn commit(&self, begun: Self::Begun) -> Result<()> {
        Shield::new(begun.commit()).await.map_err(commit_failed)
    }

    async fn rollback(&self, begun: Self::Begun) -> Result<()> {
        Shield::new(begun.rollback()).await.map_err(failed("cannot roll back"))
    }

    async fn verify(&self) -> Result<()> {
        SqliteStore::verify(self).await
    }

    async fn clock(&self, tx: &mut SqliteConnection) -> Result<Timestamp> {
        let clock = sqlx::query_scalar(include_str!("sql/clock.sql")).fetch_one(tx);
        clock.await.map(Timestamp::from_micros).map_err(failed("cannot read the clock"))
    }

    fn classify(&self, error: &(dyn StdError + 'static)) -> Option<Kind> {
        classify(error)
    }
}

impl Transaction<SqliteStore> for sqlx::Transaction<'_, Sqlite> {
    fn connection(&mut self) -> &mut SqliteConnection {
        self
    }
}
