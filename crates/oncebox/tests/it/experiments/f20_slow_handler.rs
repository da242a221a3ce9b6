//! F20 slow-handler: handlers that take much longer than the broker waits for
//! an answer. NATS is told that they are at work; RabbitMQ cannot be told, takes
//! the message away and delivers it again. Either way each body runs once.
//!
//! Sabotage: a feed that does not tell NATS.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use futures_util::StreamExt as _;
use oncebox::verdict::RetryPolicy;
use oncebox::{
    Acknowledge, Consumer, Context, Delivery, Envelope, Error, Feed, Handler, HandlerError, HandlerKey,
    Inbox, Kind, Message as _, Order, Publisher as _, Result, Store, Subscriber as _,
};
use oncebox_conformance::StoreFixture;
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::server::{Brand, Server};
use tokio_util::sync::CancellationToken;

use super::bodies::{Bodies, HANDLER};
use super::booking::operation;
use super::link::{GROUP, Link, NatsLink, Place, RabbitLink};
use crate::conformance::postgres::PostgresFixture;

const MESSAGES: i64 = 6;
/// Longer than three times what the brokers wait.
const SLOW: Duration = Duration::from_millis(4_200);

/// Books, after a long while.
struct Slow<F> {
    fixture: Arc<F>,
    bodies: Bodies,
}

impl<F: StoreFixture> Handler<<F::Store as Store>::Tx> for Slow<F> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        let _body = self.bodies.enter(&message.sequence.to_string(), 1);
        tokio::time::sleep(SLOW).await;
        self.fixture.effect(cx.tx(), &operation(HANDLER, &message)).await
    }
}

/// Counts deliveries.
struct Counted<F> {
    feed: F,
    deliveries: Arc<AtomicUsize>,
}

impl<F: Feed> Feed for Counted<F> {
    type Ack = F::Ack;

    async fn next(&mut self) -> Result<Option<Delivery<F::Ack>>> {
        let next = self.feed.next().await;
        if matches!(next, Ok(Some(_))) {
            self.deliveries.fetch_add(1, Ordering::SeqCst);
        }
        next
    }
}

fn messages() -> Vec<Envelope> {
    let of = |n: i64| Envelope::of(n.to_string(), &Posted::on(&format!("account-{n}"), n)).unwrap();
    (0..MESSAGES).map(of).map(|envelope| Envelope { source: SOURCE.into(), ..envelope }).collect()
}

/// Handles everything; answers with the deliveries beyond the first of each message.
async fn handle_all(fixture: &Arc<PostgresFixture>, feed: impl Feed) -> usize {
    let (bodies, deliveries) = (Bodies::default(), Arc::<AtomicUsize>::default());
    let handler = Slow { fixture: Arc::clone(fixture), bodies: bodies.clone() };
    let inbox = Inbox::builder(fixture.store(), DESTINATION).handler(handler).retry(RetryPolicy {
        max_attempts: None,
        // A copy that meets the original waits for the broker's own patience.
        busy_delay: Duration::from_secs(1),
        ..RetryPolicy::default()
    });
    let feed = Counted { feed, deliveries: Arc::clone(&deliveries) };
    let stop = CancellationToken::new();
    // Room for copies beside the originals.
    let consumer = Consumer::new(inbox.build().unwrap(), feed).concurrency(32).drain(SLOW * 2);
    let consumer = tokio::spawn(consumer.run(stop.clone()));
    let expected = usize::try_from(MESSAGES).unwrap();
    while fixture.effects().await.len() < expected {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // What was answered in vain comes once more.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    stop.cancel();
    consumer.await.unwrap();
    assert_eq!((bodies.total(), bodies.overlaps()), (expected, 0), "each body runs once");
    assert_eq!(fixture.effects().await.len(), expected);
    deliveries.load(Ordering::SeqCst) - expected
}

#[test]
fn a_slow_handler_keeps_its_message_of_nats() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(place) = Place::shared::<NatsLink>() else { return };
        let transport = NatsLink::to(&place, Order::None);
        let feed = transport.subscribe(DESTINATION, GROUP).await.unwrap();
        assert!(transport.publish(&messages()).await.iter().all(Result::is_ok));

        let again = handle_all(&fixture, feed).await;

        NatsLink::clean(&place).await;
        println!("F20 nats: {again} redeliveries");
        assert!(again <= 2 * messages().len(), "{again} redeliveries");
    });
}

#[test]
fn a_slow_handler_runs_once_although_rabbitmq_loses_patience() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(server) = Server::start(Brand::RabbitMq, "F20").await else { return };
        // The patience of half an hour, looked at every minute, made shorter.
        let impatient = "application:set_env(rabbit, consumer_timeout, 3000), \
                         application:set_env(rabbit, channel_tick_interval, 500).";
        server.ctl(&["-q", "eval", impatient]).await;
        let place = Place::new(server.url());
        let transport = RabbitLink::to(&place, Order::None);
        let feed = transport.subscribe(DESTINATION, GROUP).await.unwrap();
        assert!(transport.publish(&messages()).await.iter().all(Result::is_ok));

        let again = handle_all(&fixture, feed).await;

        println!("F20 rabbitmq: {again} redeliveries");
        assert!(again > 0, "the server was not impatient");
        assert!(again <= 2 * messages().len(), "{again} redeliveries");
    });
}

/// Deliveries of a pull consumer whose holder never says that it is at work.
struct Mute(pull::Stream);

struct MuteAck(async_nats::jetstream::Message);

impl Feed for Mute {
    type Ack = MuteAck;

    async fn next(&mut self) -> Result<Option<Delivery<MuteAck>>> {
        let Some(Ok(message)) = self.0.next().await else { return Ok(None) };
        let posted = Posted::decode(&message.payload).unwrap();
        let envelope = Envelope::of(posted.sequence.to_string(), &posted).unwrap();
        let envelope = Envelope { source: SOURCE.into(), ..envelope };
        Ok(Some(Delivery { envelope, attempt: 1, ack: MuteAck(message) }))
    }
}

impl Acknowledge for MuteAck {
    async fn ack(self) -> Result<()> {
        self.0.ack().await.map_err(|error| Error::new(Kind::Unavailable, error.to_string()))
    }

    async fn nack(self, after: Duration, _spent: bool) -> Result<()> {
        let later = async_nats::jetstream::AckKind::Nak(Some(after));
        self.0.ack_with(later).await.map_err(|error| Error::new(Kind::Unavailable, error.to_string()))
    }
}

#[test]
fn sabotaged_without_a_sign_of_life_nats_delivers_again_and_again() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(place) = Place::shared::<NatsLink>() else { return };
        let transport = NatsLink::to(&place, Order::None);
        assert!(transport.publish(&messages()).await.iter().all(Result::is_ok));
        let context = NatsLink::context(&place).await;
        let stream = context.stream_by_subject(NatsLink::subject(&place)).await.unwrap();
        let config = pull::Config {
            durable_name: Some("mute".into()),
            ack_wait: Duration::from_secs(1),
            ..pull::Config::default()
        };
        let consumer: PullConsumer = context.create_consumer_on_stream(config, stream).await.unwrap();

        let again = handle_all(&fixture, Mute(consumer.messages().await.unwrap())).await;

        NatsLink::clean(&place).await;
        println!("F20 sabotaged: {again} redeliveries");
        assert!(again > 2 * messages().len(), "{again} redeliveries");
    });
}
