//! An order and its message commit together; a handler in the same process ships the order.
//!
//! `cargo run -p oncebox --example first_message [DATABASE FILE]`

use std::time::Duration;

use oncebox::memory::MemoryTransport;
use oncebox::stores::sqlite::{SqliteStore, migrate};
use oncebox::{CancellationToken, HandlerError, Message, Oncebox, handler};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

/// What is sent. The name is stored and travels, so it is written out.
#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1", key = "order_id", destination = "orders")]
struct OrderPlaced {
    order_id: i64,
    item: String,
}

/// What happens once per message. The transaction also holds the marker of the message.
#[handler(key = "ship-order")]
async fn ship_order(tx: &mut SqliteConnection, order: OrderPlaced) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO shipment (order_id, item) VALUES (?, ?)")
        .bind(order.order_id)
        .bind(&order.item)
        .execute(tx)
        .await?;
    println!("shipping {}", order.item);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "first_message.db".into());

    // The database: one file, with the tables of oncebox beside your own.
    let store = SqliteStore::create(&file).await?;
    migrate::up(&store).await?;
    store.verify().await?;
    let pool = store.pool().clone();
    for table in [
        "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)",
        "CREATE TABLE IF NOT EXISTS shipment (order_id INTEGER NOT NULL, item TEXT NOT NULL)",
    ] {
        sqlx::query(table).execute(&pool).await?;
    }

    // Relay, consumer and janitor around that store and a transport inside this process.
    let app = Oncebox::new(store, MemoryTransport::new())
        .service("shop")
        .channel("orders", |channel| channel.handler(ship_order));
    let outbox = app.outbox();
    let stop = CancellationToken::new();
    let running = tokio::spawn(app.run_until(stop.clone()));

    // Two orders. The first transaction commits; the second rolls back, and its message with it.
    for (item, is_kept) in [("a lamp", true), ("a unicorn", false)] {
        let mut tx = pool.begin().await?;
        let (order_id,): (i64,) = sqlx::query_as("INSERT INTO orders (item) VALUES (?) RETURNING id")
            .bind(item)
            .fetch_one(&mut *tx)
            .await?;
        outbox.put(&mut tx, &OrderPlaced { order_id, item: item.into() }).await?;
        if is_kept {
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
    }

    // Wait until every order that exists is shipped, then stop in good order.
    tokio::time::timeout(Duration::from_secs(30), async {
        while count(&pool, "SELECT count(*) FROM shipment").await?
            < count(&pool, "SELECT count(*) FROM orders").await?
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok::<_, sqlx::Error>(())
    })
    .await??;
    stop.cancel();
    running.await??;

    let orders = count(&pool, "SELECT count(*) FROM orders").await?;
    let shipments = count(&pool, "SELECT count(*) FROM shipment").await?;
    println!("orders: {orders}, shipments: {shipments}");
    Ok(())
}

async fn count(pool: &sqlx::SqlitePool, sql: &'static str) -> sqlx::Result<i64> {
    sqlx::query_scalar(sql).fetch_one(pool).await
}
