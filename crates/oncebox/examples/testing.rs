//! Tests of a service's own handlers: copies, dead letters and a process that dies anywhere, on a real
//! database, without a broker and without waiting.
//!
//! `cargo run -p oncebox --example testing`
#![allow(clippy::expect_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::stores::sqlite::{SqliteStore, migrate, pool_options};
use oncebox::testing::{Buried, Stage, Step, every_crash_point_on};
use oncebox::{Context, CrashPoint, Effects, Envelope, HandlerError, Message, handler};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1", key = "order_id", destination = "orders")]
struct OrderPlaced {
    order_id: i64,
    cents: i64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(name = "order.shipped.v1", destination = "shipments")]
struct OrderShipped {
    order_id: i64,
}

/// The handler that is tested first: a row and a message, both in the transaction it is given.
#[handler(key = "ship-order")]
async fn ship_order(cx: &mut Context<'_, SqliteConnection>, order: OrderPlaced) -> Result<(), HandlerError> {
    if order.cents < 0 {
        return Err(HandlerError::permanent("a negative price"));
    }
    let insert = sqlx::query("INSERT INTO shipment (order_id) VALUES (?)").bind(order.order_id);
    insert.execute(&mut *cx.tx()).await?;
    cx.put(&OrderShipped { order_id: order.order_id }).await?;
    Ok(())
}

/// Stands for somebody's API: it prints labels, and never takes one back.
#[derive(Clone, Default)]
struct ParcelService {
    labels: Arc<AtomicUsize>,
}

impl ParcelService {
    async fn print_label(&self, _order_id: i64) -> Result<usize, HandlerError> {
        Ok(self.labels.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    a_copy_ships_nothing_twice().await;
    a_negative_price_waits_for_a_person().await;
    a_dead_process_leaves_its_work_to_the_next().await;
    an_order_is_shipped_once_wherever_the_process_dies().await;

    // The same check finds the mistake, and its message says where. The test itself would just fail.
    let found = tokio::spawn(a_label_printed_in_the_transaction()).await;
    let panic = found.expect_err("there is a mistake to be found").into_panic();
    let text = panic.downcast_ref::<String>().map_or("", String::as_str);
    println!("found: {}", text.lines().next().unwrap_or_default());

    a_label_is_printed_once_wherever_the_process_dies().await;
    Ok(())
}

/// An empty database of the kind the service uses, for one test.
async fn store() -> SqliteStore {
    // One connection: each would have a database in memory of its own.
    let pool = pool_options().max_connections(1).connect("sqlite::memory:").await.expect("a database");
    sqlx::query("CREATE TABLE shipment (order_id INTEGER)").execute(&pool).await.expect("a table");
    let store = SqliteStore::new(pool);
    migrate::up(&store).await.expect("the tables of oncebox");
    store
}

/// The service as `main` sets it up, but on a stage.
fn service(stage: Stage<SqliteStore>) -> Stage<SqliteStore> {
    stage.service("shop").channel("orders", |inbox| inbox.durable().handler(ship_order))
}

async fn shipments(stage: &Stage<SqliteStore>) -> Vec<i64> {
    let rows = sqlx::query_scalar("SELECT order_id FROM shipment ORDER BY order_id");
    rows.fetch_all(stage.store().pool()).await.expect("rows")
}

async fn a_copy_ships_nothing_twice() {
    let mut stage = service(Stage::on(store().await));

    stage.duplicate(1);
    let id = stage.put(&OrderPlaced { order_id: 1, cents: 4200 }).await;
    stage.run_until_idle().await;

    stage.assert_handled_once("ship-order", &id);
    assert_eq!(stage.skipped("ship-order"), [id]);
    assert_eq!(shipments(&stage).await, [1]);
    assert_eq!(stage.put_of::<OrderShipped>().await, [OrderShipped { order_id: 1 }]);
    println!("ok: a copy ships nothing twice");
}

async fn a_negative_price_waits_for_a_person() {
    let mut stage = service(Stage::on(store().await));

    let id = stage.put(&OrderPlaced { order_id: 1, cents: -1 }).await;
    stage.run_until_idle().await;

    assert_eq!(stage.buried().await, [Buried::new("ship-order", id, "permanent")]);
    assert!(shipments(&stage).await.is_empty());
    println!("ok: a negative price waits for a person");
}

async fn a_dead_process_leaves_its_work_to_the_next() {
    let mut stage = service(Stage::on(store().await));
    let order = OrderPlaced { order_id: 1, cents: 4200 };
    let from_elsewhere = Envelope { source: "web".into(), ..Envelope::of("m-1", &order).expect("JSON") };

    stage.crash_at(CrashPoint::D4, 1);
    stage.deliver(from_elsewhere).await;
    let mut last = None;
    while let Some(step) = stage.step().await {
        last = Some(step);
    }
    assert_eq!(last, Some(Step::Crashed(CrashPoint::D4)));
    assert!(shipments(&stage).await.is_empty(), "the transaction died with the process");

    // Whoever held the message is gone; its lease is not, yet.
    stage.advance(Duration::from_secs(61));
    stage.run_until_idle().await;
    stage.assert_handled_once("ship-order", "m-1");
    assert_eq!(shipments(&stage).await, [1]);
    println!("ok: a dead process leaves its work to the next");
}

async fn an_order_is_shipped_once_wherever_the_process_dies() {
    let points = every_crash_point_on(store, |stage| async move {
        let mut stage = service(stage);
        let id = stage.put(&OrderPlaced { order_id: 1, cents: 4200 }).await;
        stage.run_until_idle().await;

        stage.assert_handled_once("ship-order", &id);
        assert_eq!(shipments(&stage).await, [1]);
        assert_eq!(stage.put_of::<OrderShipped>().await, [OrderShipped { order_id: 1 }]);
    })
    .await;
    let names: Vec<String> = points.into_iter().map(CrashPoint::name).collect();
    println!("ok: an order is shipped once if the process dies at {}", names.join(", "));
}

/// A mistake: a label stays printed when the transaction is rolled back, and is printed again.
async fn a_label_printed_in_the_transaction() {
    every_crash_point_on(store, |stage| async move {
        let parcels = ParcelService::default();
        let called = parcels.clone();
        let print = move |_: &mut SqliteConnection, order: OrderPlaced| {
            let parcels = called.clone();
            async move { parcels.print_label(order.order_id).await.map(drop) }
        };
        let mut stage = stage.channel("orders", move |inbox| {
            inbox.durable().on::<OrderPlaced, _>("print-label", print.clone())
        });
        stage.put(&OrderPlaced { order_id: 1, cents: 4200 }).await;
        stage.run_until_idle().await;

        assert!(parcels.labels.load(Ordering::SeqCst) == 1, "more than one label");
    })
    .await;
}

/// The same effect, declared as one outside of the database.
async fn a_label_is_printed_once_wherever_the_process_dies() {
    every_crash_point_on(store, |stage| async move {
        let parcels = ParcelService::default();
        let called = parcels.clone();
        let print = move |effects: Effects, order: OrderPlaced| {
            let parcels = called.clone();
            async move {
                effects
                    .once("label", |_key| async move { parcels.print_label(order.order_id).await })
                    .await?;
                Ok(())
            }
        };
        let mut stage = stage.channel("orders", move |inbox| {
            inbox.durable().outside::<OrderPlaced, _, _>("print-label", print.clone())
        });
        let id = stage.put(&OrderPlaced { order_id: 1, cents: 4200 }).await;
        stage.run_until_idle().await;

        stage.assert_handled_once("print-label", &id);
        assert_eq!(parcels.labels.load(Ordering::SeqCst), 1);
    })
    .await;
    println!("ok: a label is printed once wherever the process dies");
}
