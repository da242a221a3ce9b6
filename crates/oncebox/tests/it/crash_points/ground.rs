//! What the cases need of a database beyond the conformance fixture.

use oncebox::{HandlerError, Store};
use oncebox_conformance::StoreFixture;
use sqlx::AssertSqlSafe;

pub(crate) use crate::conformance::postgres::PostgresFixture;
pub(crate) use crate::conformance::sqlite::SqliteFixture;

type Tx<F> = <<F as StoreFixture>::Store as Store>::Tx;

/// A database that can be made to fail under a handler.
pub(crate) trait Ground: StoreFixture {
    /// Meets the database's own "run it all again": 40001, or SQLITE_BUSY.
    fn contend(&self, tx: &mut Tx<Self>) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Dooms the transaction and tells nobody.
    fn doom(&self, tx: &mut Tx<Self>) -> impl Future<Output = ()> + Send;

    /// Where another process finds this store: its URL and its schema.
    fn place(&self) -> (String, String);
}

impl Ground for PostgresFixture {
    async fn contend(&self, tx: &mut Tx<Self>) -> Result<(), HandlerError> {
        let raise = "DO $$ BEGIN RAISE EXCEPTION 'forced' USING ERRCODE = '40001'; END $$";
        sqlx::raw_sql(raise).execute(tx).await?;
        Ok(())
    }

    async fn doom(&self, tx: &mut Tx<Self>) {
        assert!(sqlx::raw_sql("SELECT 1 / 0").execute(tx).await.is_err());
    }

    fn place(&self) -> (String, String) {
        (std::env::var("ONCEBOX_TEST_POSTGRES_URL").unwrap(), self.schema.clone())
    }
}

impl Ground for SqliteFixture {
    /// The handler's transaction holds the only write lock; whoever else wants
    /// it is told that the database is busy.
    async fn contend(&self, _tx: &mut Tx<Self>) -> Result<(), HandlerError> {
        let mut other = self.store.pool().acquire().await?;
        sqlx::raw_sql("PRAGMA busy_timeout = 0").execute(&mut *other).await?;
        let busy = sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut *other).await;
        sqlx::raw_sql("PRAGMA busy_timeout = 5000").execute(&mut *other).await?;
        busy?;
        Ok(())
    }

    /// The one thing that ends a SQLite transaction under its owner's hands.
    async fn doom(&self, tx: &mut Tx<Self>) {
        let insert = "INSERT OR ROLLBACK INTO ledger (number, handler, id, sequence, amount) \
                      VALUES (1000000, 'doom', '', 0, 0), (1000000, 'doom', '', 0, 0)";
        assert!(sqlx::raw_sql(AssertSqlSafe(insert)).execute(tx).await.is_err());
    }

    fn place(&self) -> (String, String) {
        (self.folder.join("store.db").to_str().unwrap().to_owned(), "oncebox".into())
    }
}
