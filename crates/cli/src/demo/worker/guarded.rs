//! The same service with oncebox: the message is put into the order's
//! transaction, the relay publishes it, and the handler's effect is marked.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncebox_core::transport::{Acknowledge, Delivery, Failure, Feed, Publisher};
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Envelope, HandlerError, HandlerKey, Message, MissingId, Result};
use oncebox_flow::crash::Reaction;
use oncebox_flow::inbox::on;
use oncebox_flow::{Consumer, CrashPoint, HandlerOptions, Inbox, Outbox, Probe, Relay, Wakeup};
use oncebox_stores::sqlite::{SqliteStore, migrate};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::broker_pipe::BrokerPipe;
use super::{apply, store_order};
use crate::demo::wire::{FromWorker, KillPoint, Parcel, ToWorker};
use crate::fault::{Class, Fault};

/// No order is being published towards its death.
const NOBODY: u32 = u32::MAX;

#[derive(Debug, Serialize, Deserialize)]
struct OrderPlaced {
    order_id: u32,
    amount: i64,
}

impl Message for OrderPlaced {
    const NAME: &'static str = "order.placed.v1";
    const DESTINATION: Option<&'static str> = Some("orders");

    // No ordering key: orders are independent, and the broker may shuffle them.
    fn key(&self) -> Option<Cow<'_, str>> {
        None
    }
}

async fn ship(tx: &mut sqlx::SqliteConnection, order: OrderPlaced) -> Result<(), HandlerError> {
    apply(tx, i64::from(order.order_id), order.amount).await?;
    Ok(())
}

pub(super) async fn serve(pool: SqlitePool, pipe: Arc<BrokerPipe>, sabotage: bool) -> Result<(), Fault> {
    let store = SqliteStore::new(pool.clone());
    migrate::up(&store).await?;
    store.verify().await?;
    let stop = CancellationToken::new();
    let wakeup = Wakeup::new();
    let outbox = Outbox::new(store.clone()).source("shop").wakeup(wakeup.clone());
    let doomed = Arc::new(AtomicU32::new(NOBODY));
    let relay =
        Relay::builder(store.clone(), Broker { pipe: Arc::clone(&pipe), doomed: Arc::clone(&doomed) })
            .sink("demo")
            .lease(Duration::from_secs(1))
            .publish_timeout(Duration::from_millis(500))
            .error_backoff(Duration::from_millis(50))
            .wakeup(wakeup)
            .probe(dying_after_publish(&pipe, &doomed))
            .build()?;
    let (deliveries, feed) = mpsc::channel(64);
    let inbox = Inbox::builder(store, "orders").handler(handler(sabotage)).retry(patient()).build()?;
    let consumer = Consumer::new(inbox, PipeFeed(feed)).concurrency(4);
    let running = tokio::spawn(relay.run(stop.clone()));
    let consuming = tokio::spawn(consumer.run(stop.clone()));
    pipe.say(&FromWorker::Ready).await;
    while let Some(message) = pipe.next().await {
        match message {
            ToWorker::Place { order, amount, kill } => {
                let client = Client {
                    pool: pool.clone(),
                    outbox: outbox.clone(),
                    pipe: Arc::clone(&pipe),
                    doomed: Arc::clone(&doomed),
                };
                tokio::spawn(
                    async move { client.place(OrderPlaced { order_id: order, amount }, kill).await },
                );
            }
            ToWorker::Deliver { tag, attempt, parcel, kill } => {
                let ack = PipeAck { pipe: Arc::clone(&pipe), tag, order: parcel.order, kill };
                deliveries.send(Delivery { envelope: envelope(parcel), attempt, ack }).await.ok();
            }
            _ => {}
        }
    }
    stop.cancel();
    running.await.map_err(|error| Fault::new(Class::Failed, error.to_string()))?;
    consuming.await.map_err(|error| Fault::new(Class::Failed, error.to_string()))?;
    Ok(())
}

/// The sabotaged handler runs without its marker; the proof must notice.
fn handler(sabotage: bool) -> impl oncebox_flow::Handler<sqlx::SqliteConnection> {
    let mut options = HandlerOptions::default();
    if sabotage {
        options.selector = oncebox_core::KeySelector::Header("nobody-sets-this".into());
        options.missing_id = MissingId::AllowUnkeyed;
    }
    on::<OrderPlaced, _>(HandlerKey::new("ship-order"), ship).options(options)
}

fn patient() -> RetryPolicy {
    RetryPolicy { busy_delay: Duration::from_millis(20), ..RetryPolicy::default() }
}

/// Dies between the broker's confirm and the settle, if an order is marked for it.
fn dying_after_publish(pipe: &Arc<BrokerPipe>, doomed: &Arc<AtomicU32>) -> Probe {
    let (pipe, doomed) = (Arc::clone(pipe), Arc::clone(doomed));
    Probe::new(move |point| {
        let (pipe, doomed) = (Arc::clone(&pipe), Arc::clone(&doomed));
        async move {
            let order = doomed.load(Ordering::SeqCst);
            if point == CrashPoint::R5 && order & PUBLISHED != 0 && order != NOBODY {
                pipe.await_death(KillPoint::Published, order & !PUBLISHED).await;
            }
            Reaction::Go
        }
    })
}

/// Set in `doomed` once the order's message has been published.
const PUBLISHED: u32 = 1 << 31;

struct Client {
    pool: SqlitePool,
    outbox: Outbox<SqliteStore>,
    pipe: Arc<BrokerPipe>,
    doomed: Arc<AtomicU32>,
}

impl Client {
    async fn place(self, order: OrderPlaced, kill: Option<KillPoint>) {
        let number = order.order_id;
        if kill == Some(KillPoint::Published) {
            self.doomed.store(number, Ordering::SeqCst);
        }
        // A client would get an error and ask again; the demo's client is this loop.
        let first = loop {
            match self.store(&order).await {
                Ok(first) => break first,
                Err(error) => tracing::info!(order = number, error = error.chain(), "place.again"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        if kill == Some(KillPoint::Committed) {
            self.pipe.await_death(KillPoint::Committed, number).await;
        }
        if kill == Some(KillPoint::Published) {
            // Not answered: the relay dies with this order in its hands. If an
            // earlier life stored it, it may have left already.
            if first {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            self.pipe.await_death(KillPoint::Published, number).await;
        }
        self.pipe.say(&FromWorker::Placed { order: number }).await;
    }

    /// True if the order was not stored before.
    async fn store(&self, order: &OrderPlaced) -> Result<bool, HandlerError> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        let first = store_order(&mut tx, order.order_id, order.amount).await?;
        if first {
            let id = format!("ord-{:04}", order.order_id);
            self.outbox.message(order)?.id(id).put(&mut tx).await?;
        }
        tx.commit().await?;
        Ok(first)
    }
}

/// The relay's way to the broker: all of a batch is sent before the first
/// confirm is awaited.
struct Broker {
    pipe: Arc<BrokerPipe>,
    doomed: Arc<AtomicU32>,
}

impl Publisher for Broker {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let mut confirms = Vec::new();
        for envelope in batch {
            let order = order_of(&envelope.payload);
            confirms.push((order, self.pipe.publish(parcel(envelope, order)).await));
        }
        let mut results = Vec::new();
        for (order, confirm) in confirms {
            let stored = confirm.await.unwrap_or(false);
            if stored && self.doomed.load(Ordering::SeqCst) == order {
                self.doomed.fetch_or(PUBLISHED, Ordering::SeqCst);
            }
            results.push(if stored { Ok(()) } else { Err(Failure::destination("the broker is down")) });
        }
        results
    }
}

fn order_of(payload: &[u8]) -> u32 {
    OrderPlaced::decode(payload).map_or(NOBODY, |order| order.order_id)
}

fn parcel(envelope: &Envelope, order: u32) -> Parcel {
    Parcel {
        id: envelope.id.clone(),
        source: envelope.source.clone(),
        kind: envelope.kind.clone(),
        body: String::from_utf8_lossy(&envelope.payload).into_owned(),
        order,
    }
}

fn envelope(parcel: Parcel) -> Envelope {
    Envelope {
        id: parcel.id,
        source: parcel.source,
        kind: parcel.kind,
        payload: parcel.body.into_bytes(),
        destination: "orders".into(),
        ..Envelope::default()
    }
}

struct PipeFeed(mpsc::Receiver<Delivery<PipeAck>>);

impl Feed for PipeFeed {
    type Ack = PipeAck;

    async fn next(&mut self) -> Result<Option<Delivery<PipeAck>>> {
        Ok(self.0.recv().await)
    }
}

struct PipeAck {
    pipe: Arc<BrokerPipe>,
    tag: u64,
    order: u32,
    kill: Option<KillPoint>,
}

impl Acknowledge for PipeAck {
    async fn ack(self) -> Result<()> {
        if let Some(point) = self.kill {
            self.pipe.await_death(point, self.order).await;
        }
        self.pipe.say(&FromWorker::Ack { tag: self.tag }).await;
        Ok(())
    }

    async fn nack(self, after: Duration, _spent: bool) -> Result<()> {
        tokio::time::sleep(after).await;
        self.pipe.say(&FromWorker::Nack { tag: self.tag }).await;
        Ok(())
    }
}
