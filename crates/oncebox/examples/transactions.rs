//! Every way to put a message into a transaction, and what happens if the transaction does not commit.
//!
//! `cargo run -p oncebox --example transactions [DATABASE FILE]`

use std::time::Duration;

use oncebox::stores::sqlite::{SqliteStore, migrate};
use oncebox::{Envelope, Failure, Kind, Limits, Message, Outbox, Publisher, Relay, Store};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1", key = "order_id", destination = "orders")]
struct OrderPlaced {
    order_id: i64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(name = "reminder.v1", destination = "reminders")]
struct Reminder {
    text: String,
}

type Anything = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Anything> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "transactions.db".into());
    let store = SqliteStore::create(&file).await?;
    migrate::up(&store).await?;
    let pool = store.pool().clone();
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)").execute(&pool).await?;

    // One outbox for the whole service: who it is, what it accepts, and what every message gets.
    let outbox = Outbox::new(store.clone())
        .source("shop")
        .limits(Limits { payload_bytes: 1000, ..Limits::default() })
        .enrich(|envelope| envelope.traceparent = current_trace());

    one_message(&pool, &outbox).await?;
    many_messages(&store, &outbox).await?;
    a_draft(&pool, &outbox).await?;
    a_repeated_operation(&pool, &outbox).await?;
    too_large(&pool, &outbox).await?;
    a_unit(&outbox).await?;
    a_bare_connection(&pool, &outbox).await?;
    plain_sql(&pool).await?;

    println!("what leaves:");
    Relay::builder(store, Printer).build()?.step().await?;
    Ok(())
}

/// The usual way: a business write and a message in the transaction you already have.
async fn one_message(pool: &SqlitePool, outbox: &Outbox<SqliteStore>) -> Result<(), Anything> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id) VALUES (1)").execute(&mut *tx).await?;
    outbox.put(&mut tx, &OrderPlaced { order_id: 1 }).await?;
    tx.commit().await?;
    Ok(())
}

/// Many messages of one type. `Store::begin` takes SQLite's write lock at once and can be cancelled safely.
async fn many_messages(store: &SqliteStore, outbox: &Outbox<SqliteStore>) -> Result<(), Anything> {
    let orders = [OrderPlaced { order_id: 2 }, OrderPlaced { order_id: 3 }];
    let mut tx = store.begin().await?;
    let ids = outbox.put_all(&mut tx, &orders).await?;
    store.commit(tx).await?;
    println!("put_all: {} messages", ids.len());
    Ok(())
}

/// A draft takes everything else an envelope can carry.
async fn a_draft(pool: &SqlitePool, outbox: &Outbox<SqliteStore>) -> Result<(), Anything> {
    let mut tx = pool.begin().await?;
    outbox
        .message(&OrderPlaced { order_id: 4 })?
        .id("order-4-placed")
        .tenant("acme")
        .subject("orders/4")
        .correlation_id("checkout-77")
        .header("x-priority", "high")
        .put(&mut tx)
        .await?;
    // Not before this time tomorrow, by the database's clock.
    let reminder = Reminder { text: "order 4 is still open".into() };
    outbox.message(&reminder)?.delay(Duration::from_secs(24 * 3600)).put(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

/// An id of your own makes a repeated operation visible: the second put is a conflict.
async fn a_repeated_operation(pool: &SqlitePool, outbox: &Outbox<SqliteStore>) -> Result<(), Anything> {
    let mut tx = pool.begin().await?;
    let again = outbox.message(&OrderPlaced { order_id: 4 })?.id("order-4-placed").tenant("acme");
    let refused = again.put(&mut tx).await.err();
    println!("the same id again: {}", kind(refused.as_ref()));
    tx.rollback().await?;
    Ok(())
}

/// A message over a limit is refused before any statement is sent, so the transaction stays usable.
async fn too_large(pool: &SqlitePool, outbox: &Outbox<SqliteStore>) -> Result<(), Anything> {
    let mut tx = pool.begin().await?;
    let refused = outbox.put(&mut tx, &Reminder { text: "x".repeat(2000) }).await.err();
    println!("too large: {}", kind(refused.as_ref()));
    outbox.put(&mut tx, &Reminder { text: "short enough".into() }).await?;
    tx.commit().await?;
    Ok(())
}

/// The whole transaction as one unit: it survives a caller that goes away and looks up a lost COMMIT.
async fn a_unit(outbox: &Outbox<SqliteStore>) -> Result<(), Anything> {
    let order_id = outbox
        .transact(|unit| {
            Box::pin(async move {
                sqlx::query("INSERT INTO orders (id) VALUES (5)").execute(unit.tx()).await?;
                unit.put(&OrderPlaced { order_id: 5 }).await?;
                Ok(5)
            })
        })
        .await?;
    println!("transact: order {order_id}");
    Ok(())
}

/// A bare connection, for code whose transaction oncebox cannot see. Without one, the put is its own commit.
async fn a_bare_connection(pool: &SqlitePool, outbox: &Outbox<SqliteStore>) -> Result<(), Anything> {
    let mut connection = pool.acquire().await?;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await?;
    outbox.put_on(&mut connection, &OrderPlaced { order_id: 6 }).await?;
    sqlx::query("COMMIT").execute(&mut *connection).await?;
    Ok(())
}

/// The table is the interface for everything that is not Rust.
async fn plain_sql(pool: &SqlitePool) -> Result<(), Anything> {
    sqlx::query(
        "INSERT INTO oncebox_outbox (type, destination, ordering_key, payload) \
         VALUES ('order.placed.v1', 'orders', '7', '{\"order_id\":7}')",
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// A destination: it answers for each message whether it is stored.
struct Printer;

impl Publisher for Printer {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        for message in batch {
            let (key, trace) = (message.key.as_deref().unwrap_or("-"), message.traceparent.is_some());
            println!("  {} to {}, key {key}, traced {trace}", message.kind, message.destination);
        }
        vec![Ok(()); batch.len()]
    }
}

/// Stands for your tracing library: the W3C `traceparent` of the current span.
fn current_trace() -> Option<String> {
    Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into())
}

fn kind(error: Option<&oncebox::Error>) -> &'static str {
    error.map_or("accepted", |error| Kind::name(error.kind()))
}
