//! Stores that are down, for the cases that need one.

use std::time::Duration;

use oncebox_stores::{postgres, sqlite};

use crate::fault::Fault;

/// A database that nobody answers for.
pub(super) fn down() -> Result<postgres::PostgresStore, Fault> {
    let options = postgres::pool_options().acquire_timeout(Duration::from_millis(200));
    let pool = options.connect_lazy("postgres://nobody@127.0.0.1:1/nothing")?;
    Ok(postgres::PostgresStore::new(pool))
}

/// One that admits requests, and then cannot write what came of them.
pub(super) async fn cannot_seal() -> Result<sqlite::SqliteStore, Fault> {
    // One connection: each would have a database in memory of its own.
    let pool = sqlite::pool_options()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect("sqlite::memory:")
        .await?;
    let store = sqlite::SqliteStore::new(pool.clone());
    sqlite::migrate::up(&store).await?;
    let refuse = "CREATE TRIGGER dying BEFORE UPDATE OF state ON oncebox_receipt
                  BEGIN SELECT RAISE(ABORT, 'the store is down'); END";
    sqlx::query(refuse).execute(&pool).await?;
    Ok(store)
}
