//! A worker process of the demo: one of the two services.

mod broker_pipe;
mod guarded;
mod naive;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{AssertSqlSafe, SqlitePool};

use super::wire::Service;
use crate::fault::Fault;
use broker_pipe::BrokerPipe;

/// When something happened, in milliseconds since the lane's first order.
const SINCE_START: &str = "(julianday('now') - (SELECT min(at) FROM epoch)) * 86400000.0";
const TABLES: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS epoch (at REAL NOT NULL)",
    "INSERT INTO epoch SELECT julianday('now') WHERE NOT EXISTS (SELECT 1 FROM epoch)",
    "CREATE TABLE IF NOT EXISTS orders (order_id INTEGER PRIMARY KEY, amount INTEGER NOT NULL, placed_at REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS ledger (order_id INTEGER NOT NULL, amount INTEGER NOT NULL, applied_at REAL NOT NULL)",
];

#[derive(Debug, ClapArgs)]
pub(crate) struct WorkerArgs {
    #[arg(value_enum)]
    service: Service,
    database: PathBuf,
    #[arg(long)]
    sabotage: bool,
}

pub(crate) async fn work(args: WorkerArgs) -> Result<ExitCode, Fault> {
    let pool = open(&args.database).await?;
    for statement in TABLES {
        sqlx::query(statement).execute(&pool).await?;
    }
    let pipe = Arc::new(BrokerPipe::new());
    match args.service {
        Service::Naive => naive::serve(pool, pipe).await?,
        Service::Oncebox => guarded::serve(pool, pipe, args.sabotage).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Both services write with the same durability.
async fn open(database: &std::path::Path) -> Result<SqlitePool, Fault> {
    let options = SqliteConnectOptions::new()
        .filename(database)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(10));
    Ok(SqlitePoolOptions::new().max_connections(4).connect_with(options).await?)
}

/// Stores an order; false if it was stored before.
async fn store_order(tx: &mut sqlx::SqliteConnection, order: u32, amount: i64) -> Result<bool, sqlx::Error> {
    let text = format!("INSERT INTO orders VALUES (?, ?, {SINCE_START}) ON CONFLICT DO NOTHING");
    let done = sqlx::query(AssertSqlSafe(text)).bind(order).bind(amount).execute(tx).await?;
    Ok(done.rows_affected() == 1)
}

/// Applies an order's effect.
async fn apply(tx: &mut sqlx::SqliteConnection, order: i64, amount: i64) -> Result<(), sqlx::Error> {
    let text = format!("INSERT INTO ledger VALUES (?, ?, {SINCE_START})");
    sqlx::query(AssertSqlSafe(text)).bind(order).bind(amount).execute(tx).await?;
    Ok(())
}
