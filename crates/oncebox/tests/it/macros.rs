//! The derive and the attribute at work, on the reference store.

use std::fmt;
use std::time::Duration;

use oncebox::inbox::Mode;
use oncebox::log::Window;
use oncebox::memory::{MemoryStore, MemoryTx};
use oncebox::plan::OnDead;
use oncebox::stores::sqlite::SqliteStore;
use oncebox::{
    Context, Envelope, Handler, HandlerError, Inbox, KeySelector, Kind, Mailbox, Message, MissingId, Outbox,
    Outcome, handler,
};
use serde::{Deserialize, Serialize};
use sqlx::{SqliteConnection, SqlitePool};

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1", version = 2, key = "order_id", destination = "orders")]
struct OrderPlaced {
    order_id: u64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.shipped.v1")]
struct OrderShipped {
    order_id: u64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(name = "value.changed.v1", key = "0")]
struct Changed<K: fmt::Display, V>(K, V);

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.event.v1", destination = "events")]
pub(crate) enum OrderEvent {
    Cancelled,
}

#[derive(Serialize, Deserialize, Message)]
#[message(name = "parcel.weighed.v1")]
#[message(key = "type")]
struct ParcelWeighed {
    r#type: char,
}

/// Plain: the connection and nothing else.
#[handler(key = "ship-order")]
async fn ship_order(tx: &mut MemoryTx, order: OrderPlaced) -> Result<(), HandlerError> {
    tx.append("shipments", order.order_id.to_string());
    Ok(())
}

/// With the context: writes, puts a follow-up and leaves a reply.
#[handler(key = "announce-shipment")]
async fn announce(
    cx: &mut Context<'_, MemoryTx>,
    OrderPlaced { order_id }: OrderPlaced,
) -> Result<(), HandlerError> {
    cx.tx().append("announced", order_id.to_string());
    cx.put(&OrderShipped { order_id }).await?;
    cx.reply(*b"announced");
    if order_id == 13 {
        return Err(HandlerError::permanent("thirteen does not ship"));
    }
    Ok(())
}

#[handler(
    key = "all.options",
    retention = "15m",
    timeout = "30s",
    missing_id = "content_hash",
    selector = "header:x-request",
    mode = "durable",
    in_order = "skip_key",
    concurrency = 2,
    legacy = "old.options",
    legacy = "older.options"
)]
#[allow(clippy::unused_async, reason = "a lint level of the user's own must survive the macro")]
pub(crate) async fn all_options(_: &mut MemoryTx, _: OrderEvent) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "correlated", selector = "correlation_id", missing_id = "allow_unkeyed", retention = "12h")]
async fn correlated(_: &mut MemoryTx, _: OrderEvent) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "note-change", missing_id = "reject", selector = "idempotency_key")]
async fn note_change(
    tx: &mut SqliteConnection,
    Changed(key, _): Changed<u8, bool>,
) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO change (key) VALUES (?)").bind(key).execute(tx).await?;
    Ok(())
}

#[handler(key = "weigh", selector = "message_id")]
async fn weigh(cx: &mut oncebox::Context<'_, SqliteConnection>, _: OrderPlaced) -> Result<(), HandlerError> {
    cx.put(&ParcelWeighed { r#type: 'a' }).await?;
    Ok(())
}

fn delivery(id: &str, order_id: u64) -> Envelope {
    Envelope { source: "shop".into(), ..Envelope::of(id, &OrderPlaced { order_id }).unwrap() }
}

async fn logged(store: &MemoryStore) -> Vec<Envelope> {
    let window = Window { shards: &[0, 1, 2, 3, 4, 5, 6, 7], after: 0, holes: &[], limit: 10 };
    let span = store.read(window).await.unwrap();
    span.rows.into_iter().map(|row| row.envelope.unwrap()).collect()
}

#[test]
fn the_derive_sets_what_is_written_and_leaves_the_rest_at_its_default() {
    let placed = Envelope::of("1", &OrderPlaced { order_id: 7 }).unwrap();
    let cancelled = Envelope::of("2", &OrderEvent::Cancelled).unwrap();
    let changed = Envelope::of("3", &Changed("k".to_owned(), 1.5)).unwrap();

    let told = |e: &Envelope| (e.kind.clone(), e.schema_version, e.destination.clone(), e.key.clone());
    assert_eq!(told(&placed), ("order.placed.v1".into(), 2, "orders".into(), Some("7".into())));
    assert_eq!(told(&cancelled), ("order.event.v1".into(), 1, "events".into(), None));
    assert_eq!(told(&changed), ("value.changed.v1".into(), 1, "value.changed.v1".into(), Some("k".into())));
    assert_eq!(<Changed<String, f64> as Message>::decode(&changed.payload).unwrap().1, 1.5);
}

#[test]
fn options_in_the_brackets_become_the_options_of_the_handler() {
    let plain = Handler::<MemoryTx>::options(&ship_order);
    let all = Handler::<MemoryTx>::options(&all_options);
    let some = Handler::<MemoryTx>::options(&correlated);

    assert_eq!(Handler::<MemoryTx>::key(&all_options).as_str(), "all.options");
    assert_eq!((plain.retention, plain.timeout), (Duration::from_secs(7 * 24 * 3600), None));
    assert_eq!((all.retention, all.timeout), (Duration::from_secs(900), Some(Duration::from_secs(30))));
    assert_eq!((all.mode, all.lanes, all.concurrency), (Some(Mode::Durable), Some(OnDead::SkipKey), Some(2)));
    assert_eq!(
        all.legacy.iter().map(|key| key.as_str()).collect::<Vec<_>>(),
        ["old.options", "older.options"]
    );
    assert_eq!((plain.mode, plain.lanes, plain.legacy.len()), (None, None, 0));
    assert_eq!(all.missing_id, MissingId::ContentHash);
    assert!(matches!(all.selector, KeySelector::Header(name) if name == "x-request"));
    assert_eq!((some.retention, some.timeout), (Duration::from_secs(12 * 3600), None));
    assert_eq!(some.missing_id, MissingId::AllowUnkeyed);
    assert!(matches!(some.selector, KeySelector::CorrelationId));
}

#[test]
fn a_retention_below_the_redelivery_horizon_is_still_refused_by_the_inbox() {
    let refused = Inbox::builder(MemoryStore::new(), "orders").handler(all_options).build();

    assert!(refused.unwrap_err().to_string().contains("handler all.options keeps its markers for 900s"));
}

#[tokio::test]
async fn a_handler_runs_once_on_a_duplicate_delivery() {
    let store = MemoryStore::new();
    let inbox = Inbox::builder(store.clone(), "orders").handler(ship_order).build().unwrap();

    let first = inbox.receive(delivery("m1", 7), 1).await.single();
    let again = inbox.receive(delivery("m1", 7), 2).await.single();
    let other = inbox.receive(delivery("m2", 8), 1).await.single();

    assert_eq!(first, Some(Outcome::Done { result: None }));
    assert_eq!(again, Some(Outcome::Duplicate { result: None }));
    assert_eq!(other, Some(Outcome::Done { result: None }));
    assert_eq!(store.rows("shipments").await, ["7", "8"]);
}

#[tokio::test]
async fn a_follow_up_message_commits_with_the_handlers_writes_and_names_its_cause() {
    let store = MemoryStore::new();
    let inbox = Inbox::builder(store.clone(), "orders").handler(announce).build().unwrap();

    let first = inbox.receive(delivery("m1", 7), 1).await.single();
    let again = inbox.receive(delivery("m1", 7), 2).await.single();

    let result = Some(b"announced".to_vec());
    assert_eq!(first, Some(Outcome::Done { result: result.clone() }));
    assert_eq!(again, Some(Outcome::Duplicate { result }));
    assert_eq!(store.rows("announced").await, ["7"]);
    let log = logged(&store).await;
    assert_eq!(log.len(), 1, "one follow-up for one effect");
    assert_eq!((log[0].kind.as_str(), log[0].causation_id.as_deref()), ("order.shipped.v1", Some("m1")));
}

#[tokio::test]
async fn a_failing_handler_leaves_neither_writes_nor_follow_up() {
    let store = MemoryStore::new();
    let inbox = Inbox::builder(store.clone(), "orders").handler(announce).build().unwrap();

    let refused = inbox.receive(delivery("m1", 13), 1).await.single();

    assert!(matches!(refused, Some(Outcome::Refused { code: "permanent", .. })), "{refused:?}");
    assert!(store.rows("announced").await.is_empty());
    assert!(logged(&store).await.is_empty());
}

#[tokio::test]
async fn one_inbox_runs_several_handlers_of_a_message_each_once() {
    let store = MemoryStore::new();
    let inbox =
        Inbox::builder(store.clone(), "orders").handler(ship_order).handler(announce).build().unwrap();

    for attempt in 1..=3 {
        inbox.receive(delivery("m1", 7), attempt).await;
    }

    assert_eq!((store.rows("shipments").await.len(), store.rows("announced").await.len()), (1, 1));
}

#[tokio::test]
async fn handlers_name_the_drivers_connection_and_puts_take_its_transaction() {
    let pool = SqlitePool::connect("sqlite::memory:").await.unwrap();
    let store = SqliteStore::new(pool.clone());
    let outbox = Outbox::new(store.clone());

    let built = Inbox::builder(store, "orders").handler(note_change).handler(weigh).build();
    let mut tx = pool.begin().await.unwrap();
    let put = outbox.put(&mut tx, &ParcelWeighed { r#type: 'a' }).await;

    assert_eq!(built.unwrap().retentions().len(), 2);
    assert_eq!(put.unwrap_err().kind(), Kind::Config, "it got as far as the missing tables");
    assert_eq!(ParcelWeighed { r#type: 'a' }.key().as_deref(), Some("a"));
}
