//! Handlers in their three forms, and what comes of good, repeated, changed and hopeless messages.
//!
//! `cargo run -p oncebox --example consumers [DATABASE FILE]`

use oncebox::inbox::{InboxOptions, on};
use oncebox::stores::sqlite::{SqliteStore, migrate};
use oncebox::verdict::RetryPolicy;
use oncebox::{
    Context, Envelope, Handler, HandlerError, HandlerKey, HandlerOptions, Inbox, KeySelector, Message,
    Outbox, Outcome, Verdict, handler,
};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1", key = "order_id")]
struct OrderPlaced {
    order_id: i64,
    cents: i64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(name = "payment.refunded.v1", key = "order_id")]
struct PaymentRefunded {
    order_id: i64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.billed.v1", key = "order_id")]
struct OrderBilled {
    order_id: i64,
}

/// A function with `#[handler]`. With the context it can also put messages and leave a reply.
#[handler(key = "bill-order", retention = "30d", timeout = "5s")]
async fn bill_order(cx: &mut Context<'_, SqliteConnection>, order: OrderPlaced) -> Result<(), HandlerError> {
    if order.cents < 0 {
        return Err(HandlerError::permanent("a negative price never becomes right"));
    }
    write(cx.tx(), "billed", order.order_id).await?;
    cx.put(&OrderBilled { order_id: order.order_id }).await?;
    cx.reply(format!("bill {}", order.order_id));
    Ok(())
}

/// A plain function, given its key where it is registered. Any error means: try again later.
async fn ship_order(tx: &mut SqliteConnection, order: OrderPlaced) -> Result<(), HandlerError> {
    if order.order_id == 3 {
        return Err(HandlerError::retry("the warehouse is closed"));
    }
    write(tx, "shipped", order.order_id).await?;
    Ok(())
}

/// The trait by hand, for a handler with state or a key computed from the message.
struct Refund {
    note: &'static str,
}

impl Handler<SqliteConnection> for Refund {
    type Message = PaymentRefunded;

    fn key(&self) -> HandlerKey {
        const KEY: HandlerKey = HandlerKey::new("refund");
        KEY
    }

    fn options(&self) -> HandlerOptions {
        HandlerOptions { selector: KeySelector::IdempotencyKey, ..HandlerOptions::default() }
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, SqliteConnection>,
        refund: PaymentRefunded,
    ) -> Result<(), HandlerError> {
        write(cx.tx(), self.note, refund.order_id).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "consumers.db".into());
    let store = SqliteStore::create(&file).await?;
    migrate::up(&store).await?;
    let table = "CREATE TABLE IF NOT EXISTS effect (what TEXT NOT NULL, order_id INTEGER NOT NULL)";
    sqlx::query(table).execute(store.pool()).await?;

    // In a service, `Oncebox::channel` builds this and a `Consumer` feeds it from a broker.
    let inbox = Inbox::builder(store.clone(), "orders")
        .outbox(Outbox::new(store.clone()).source("billing"))
        .options(InboxOptions {
            retry: RetryPolicy { max_attempts: Some(3), ..RetryPolicy::default() },
            ..InboxOptions::default()
        })
        .handler(bill_order)
        .handler(on(HandlerKey::new("ship-order"), ship_order))
        .handler(Refund { note: "refunded" })
        .build()?;

    // The same message twice: each handler takes effect once, and the duplicate gets the reply.
    let order = message("m-1", &OrderPlaced { order_id: 1, cents: 4200 })?;
    for attempt in 1..=2 {
        let received = inbox.receive(order.clone(), attempt).await;
        for (key, outcome) in received.outcomes {
            println!("m-1, delivery {attempt}: {key} {}", describe(&outcome));
        }
    }

    // Another body under an id that was handled is not a duplicate.
    let changed = message("m-1", &OrderPlaced { order_id: 1, cents: 9900 })?;
    show("m-1 with another body", &inbox.deliver(changed, 1).await);

    // A permanent failure is buried at once; so is a message that lacks the key its handler asks for.
    let hopeless = message("m-2", &OrderPlaced { order_id: 2, cents: -1 })?;
    show("m-2, a negative price", &inbox.deliver(hopeless, 1).await);
    let unkeyed = message("m-3", &PaymentRefunded { order_id: 1 })?;
    show("m-3, no idempotency key", &inbox.deliver(unkeyed, 1).await);

    // Any other failure is tried again until the attempts are spent. A handler that succeeded stays done.
    for attempt in 1..=3 {
        let unlucky = message("m-6", &OrderPlaced { order_id: 3, cents: 100 })?;
        show(&format!("m-6, attempt {attempt}"), &inbox.deliver(unlucky, attempt).await);
    }

    // With a business key, two messages that mean the same refund are one.
    for id in ["m-4", "m-5"] {
        let mut refund = message(id, &PaymentRefunded { order_id: 1 })?;
        refund.idempotency_key = Some("refund-of-order-1".into());
        if let Some(outcome) = inbox.receive(refund, 1).await.single() {
            println!("{id}: refund {}", describe(&outcome));
        }
    }

    let effects: Vec<(String, i64)> =
        sqlx::query_as("SELECT what, count(*) FROM effect GROUP BY what ORDER BY what")
            .fetch_all(store.pool())
            .await?;
    println!("effects: {effects:?}");
    let dead: Vec<(String, String, String)> =
        sqlx::query_as("SELECT id, handler, code FROM oncebox_dead_letter ORDER BY id, handler")
            .fetch_all(store.pool())
            .await?;
    for (id, handler, code) in dead {
        println!("dead letter: {id} at {handler}: {code}");
    }
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

/// What a broker would deliver.
fn message<M: Message>(id: &str, message: &M) -> oncebox::Result<Envelope> {
    Ok(Envelope { source: "shop".into(), ..Envelope::of(id, message)? })
}

fn describe(outcome: &Outcome) -> String {
    let reply = |result: &Option<Vec<u8>>| match result {
        Some(reply) => format!(", reply {:?}", String::from_utf8_lossy(reply)),
        None => String::new(),
    };
    match outcome {
        Outcome::Done { result } => format!("done{}", reply(result)),
        Outcome::Duplicate { result } => format!("duplicate{}", reply(result)),
        other => format!("{other:?}"),
    }
}

fn show(what: &str, verdict: &Verdict) {
    match verdict {
        Verdict::Retry { spent, .. } => println!("{what}: deliver again later, attempt spent: {spent}"),
        // Buried ones are acknowledged too: they are stored, and the broker need not keep them.
        Verdict::Done | Verdict::Dead { .. } => println!("{what}: acknowledge"),
    }
}
