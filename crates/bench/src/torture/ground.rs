//! The database under torture: its two tables, and the ledger between them.

use oncebox_core::inspect::Inspect;
use oncebox_stores::postgres::PostgresStore;
use oncebox_stores::sqlite::SqliteStore;

/// Tables that both databases understand, but for the column that counts.
const TABLES: &str = "
    CREATE TABLE torture_order (customer TEXT NOT NULL, sequence BIGINT NOT NULL, nonce TEXT NOT NULL,
        PRIMARY KEY (customer, sequence));
    CREATE INDEX torture_order_nonce ON torture_order (nonce);
    CREATE TABLE torture_effect (id {serial}, customer TEXT NOT NULL, sequence BIGINT NOT NULL,
        nonce TEXT NOT NULL);
    CREATE INDEX torture_effect_nonce ON torture_effect (nonce)";

/// Which of the two, with a connection to it.
#[derive(Clone, Debug)]
pub(super) enum Ground {
    Sqlite(SqliteStore, String),
    Postgres(PostgresStore, String),
}

/// What is in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    /// Business transactions that committed.
    pub(super) orders: i64,
    /// Effect rows.
    pub(super) effects: i64,
    /// Orders without an effect.
    pub(super) lost: i64,
    /// Effects beyond the first of an order.
    pub(super) doubled: i64,
    /// Effects without an order.
    pub(super) phantom: i64,
    /// Effects of a customer that came before an earlier order's.
    pub(super) inversions: i64,
}

const COUNTS: [&str; 6] = [
    "SELECT count(*) FROM torture_order",
    "SELECT count(*) FROM torture_effect",
    "SELECT count(*) FROM torture_order AS o
     WHERE NOT EXISTS (SELECT 1 FROM torture_effect AS e WHERE e.nonce = o.nonce)",
    "SELECT CAST(coalesce(sum(copies - 1), 0) AS BIGINT)
     FROM (SELECT count(*) AS copies FROM torture_effect GROUP BY nonce) AS t",
    "SELECT count(*) FROM torture_effect AS e
     WHERE NOT EXISTS (SELECT 1 FROM torture_order AS o WHERE o.nonce = e.nonce)",
    "SELECT count(*) FROM (
        SELECT sequence - lag(sequence) OVER (PARTITION BY customer ORDER BY id) AS step
        FROM (SELECT customer, sequence, min(id) AS id FROM torture_effect GROUP BY customer, sequence) AS firsts
     ) AS steps WHERE step <> 1",
];

impl Ground {
    /// Makes the tables in a SQLite file that has oncebox's already.
    pub(super) async fn sqlite(database: String) -> Self {
        let store = SqliteStore::connect(&database).await.expect("the database opens");
        let tables = TABLES.replace("{serial}", "INTEGER PRIMARY KEY AUTOINCREMENT");
        sqlx::raw_sql(sqlx::AssertSqlSafe(tables)).execute(store.pool()).await.expect("the tables are made");
        Self::Sqlite(store, database)
    }

    /// The same on PostgreSQL.
    pub(super) async fn postgres(database: String) -> Self {
        let store = PostgresStore::connect(&database).await.expect("the database answers");
        let tables = TABLES.replace("{serial}", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY");
        sqlx::raw_sql(sqlx::AssertSqlSafe(tables)).execute(store.pool()).await.expect("the tables are made");
        Self::Postgres(store, database)
    }

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(..) => "sqlite",
            Self::Postgres(..) => "postgres",
        }
    }

    /// Where it is, for children.
    pub(super) fn database(&self) -> &str {
        match self {
            Self::Sqlite(_, database) | Self::Postgres(_, database) => database,
        }
    }

    async fn count(&self, sql: &'static str) -> i64 {
        match self {
            Self::Sqlite(store, _) => sqlx::query_scalar(sql).fetch_one(store.pool()).await.expect("a count"),
            Self::Postgres(store, _) => {
                sqlx::query_scalar(sql).fetch_one(store.pool()).await.expect("a count")
            }
        }
    }

    /// Orders and effects, as often as one likes.
    pub(super) async fn progress(&self) -> (i64, i64) {
        (self.count(COUNTS[0]).await, self.count(COUNTS[1]).await)
    }

    /// The whole ledger.
    pub(super) async fn ledger(&self) -> Ledger {
        Ledger {
            orders: self.count(COUNTS[0]).await,
            effects: self.count(COUNTS[1]).await,
            lost: self.count(COUNTS[2]).await,
            doubled: self.count(COUNTS[3]).await,
            phantom: self.count(COUNTS[4]).await,
            inversions: self.count(COUNTS[5]).await,
        }
    }

    /// Log rows not settled, parked rows and dead letters.
    pub(super) async fn backlog(&self) -> i64 {
        let store: &dyn Inspect = match self {
            Self::Sqlite(store, _) => store,
            Self::Postgres(store, _) => store,
        };
        let status = store.status().await.expect("a status");
        let of_sinks: i64 =
            status.sinks.iter().map(|sink| sink.pending + sink.waiting + sink.behind + sink.dead).sum();
        of_sinks + status.scheduled + status.dead_letters
    }
}
