//! The durable inbox: messages are stored, each handler is run by itself, a
//! dead letter is looked at and tried again, and a payment is made once.
//!
//! `cargo run -p oncebox --example durable [DATABASE FILE]`

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncebox::inbox::Effects;
use oncebox::plan::OnDead;
use oncebox::stores::sqlite::{SqliteStore, migrate};
use oncebox::verdict::RetryPolicy;
use oncebox::{
    Backoff, HandlerError, Inbox, LetterFilter, Letters, Message, Outbox, Store, WorkOptions, Worker, handler,
};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1", key = "order_id", destination = "orders")]
struct OrderPlaced {
    order_id: i64,
    cents: i64,
}

static WAREHOUSE_IS_OPEN: AtomicBool = AtomicBool::new(false);

#[handler(key = "bill-order")]
async fn bill_order(tx: &mut SqliteConnection, order: OrderPlaced) -> Result<(), HandlerError> {
    write(tx, "billed", order.order_id).await?;
    Ok(())
}

#[handler(key = "ship-order")]
async fn ship_order(tx: &mut SqliteConnection, order: OrderPlaced) -> Result<(), HandlerError> {
    write(tx, "shipped", order.order_id).await?;
    if !WAREHOUSE_IS_OPEN.load(Ordering::SeqCst) {
        // Nothing of the above is kept.
        return Err(HandlerError::retry("the warehouse is closed"));
    }
    Ok(())
}

/// Its effect is outside the database, so it gets no transaction but a memory of what it has done.
async fn charge_card(effects: Effects, order: OrderPlaced) -> Result<(), HandlerError> {
    let receipt: String =
        effects.once("charge", |key| async move { charge(&key, order.cents).await }).await?;
    if effects.attempt() == 1 {
        return Err(HandlerError::retry("the connection broke after the payment"));
    }
    println!("attempt {}: {receipt}", effects.attempt());
    Ok(())
}

/// Somebody's payment service. The key is the same whenever this message is tried.
async fn charge(key: &str, cents: i64) -> Result<String, HandlerError> {
    println!("charged {cents} cents with a key of {} digits", key.len());
    Ok(format!("receipt for {cents} cents"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "durable.db".into());
    let store = SqliteStore::create(&file).await?;
    migrate::up(&store).await?;
    let table = "CREATE TABLE IF NOT EXISTS effect (what TEXT NOT NULL, order_id INTEGER NOT NULL)";
    sqlx::query(table).execute(store.pool()).await?;

    let moment = Duration::from_millis(1);
    let impatient = RetryPolicy {
        max_attempts: Some(3),
        backoff: Backoff { base: moment, cap: moment },
        ..RetryPolicy::default()
    };
    let inbox = Inbox::builder(store.clone(), "orders")
        .durable()
        .retry(impatient)
        .handler(bill_order)
        .handler_with(ship_order, |options| options.in_order(OnDead::BlockKey).legacy("send-order"))
        .outside::<OrderPlaced, _, _>("charge-card", charge_card)
        .build()?;

    // The consumer is in the same database: its deliveries are stored in the producer's transaction.
    let outbox = Outbox::new(store.clone()).source("shop").local(&inbox)?;
    let mut tx = store.begin().await?;
    outbox.put(&mut tx, &OrderPlaced { order_id: 1, cents: 4200 }).await?;
    store.commit(tx).await?;

    // A service calls `Worker::run`, or lets `Oncebox` do it.
    let worker = Worker::new(&inbox, WorkOptions::default())?;
    for _ in 0..20 {
        worker.run_until_idle().await?;
        tokio::time::sleep(5 * moment).await;
    }
    show_effects(&store).await?;

    let letters = store.letters(&LetterFilter::default(), 10).await?;
    for letter in &letters {
        let (handler, attempts) = (&letter.handler, letter.attempts);
        println!("dead letter: {handler} gave up after {attempts} attempts: {}", letter.reason);
    }

    WAREHOUSE_IS_OPEN.store(true, Ordering::SeqCst);
    for letter in letters {
        let requeued = store.requeue_letter(letter.id, None, None).await?;
        println!("requeued: {requeued:?}");
    }
    worker.run_until_idle().await?;
    show_effects(&store).await?;
    Ok(())
}

async fn show_effects(store: &SqliteStore) -> sqlx::Result<()> {
    let effects: Vec<(String, i64)> =
        sqlx::query_as("SELECT what, order_id FROM effect ORDER BY what").fetch_all(store.pool()).await?;
    println!("effects: {effects:?}");
    Ok(())
}

async fn write(tx: &mut SqliteConnection, what: &str, order_id: i64) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO effect (what, order_id) VALUES (?, ?)")
        .bind(what)
        .bind(order_id)
        .execute(tx)
        .await?;
    Ok(())
}
