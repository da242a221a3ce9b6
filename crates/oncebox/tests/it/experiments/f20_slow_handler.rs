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
    Identifier, Inbox, Kind, Message as _, Order, Publisher as _, Result, Store, Subscriber as _,
};
use oncebox_conformance::StoreFixture;
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::server::{Brand, Server};
use oncebox_conformance::size::sized;
use oncebox_stores::postgres::{PostgresStore, pool_options};
use oncebox_transports::nats::Nats;
use oncebox_transports::rabbitmq::RabbitMq;
use tokio_util::sync::CancellationToken;

use super::bodies::{Bodies, HANDLER};
use super::booking::operation;
use super::link::{GROUP, Link, NatsLink, Place, RabbitLink};
use crate::conformance::postgres::PostgresFixture;

fn count() -> i64 {
    sized(6, 500)
}

/// How long a body takes.
fn slow() -> Duration {
    sized(Duration::from_millis(4_200), Duration::from_secs(30))
}

/// How long RabbitMQ waits for an answer.
fn patience() -> Duration {
    Duration::from_secs(sized(3, 10))
}

/// How long a publish waits for its confirm: nothing is sent twice because the machine is slow.
const CONFIRMED: Duration = Duration::from_secs(30);

/// A place for every body and some copies beside them, or for some of the many bodies.
fn seats() -> u32 {
    sized(32, 64)
}

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
        tokio::time::sleep(slow()).await;
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
    (0..count()).map(of).map(|envelope| Envelope { source: SOURCE.into(), ..envelope }).collect()
}

/// Handles everything; answers with the deliveries beyond the first of each message.
async fn handle_all(fixture: &Arc<PostgresFixture>, feed: impl Feed) -> usize {
    let (bodies, deliveries) = (Bodies::default(), Arc::<AtomicUsize>::default());
    let handler = Slow { fixture: Arc::clone(fixture), bodies: bodies.clone() };
    // Each body has a transaction open.
    let pool = pool_options().max_connections(seats() + 8);
    let pool = pool.connect_with((*fixture.pool.connect_options()).clone()).await.unwrap();
    let store = PostgresStore::new(pool.clone()).schema(Identifier::new(&fixture.schema).unwrap());
    let inbox = Inbox::builder(store, DESTINATION)
        .handler_with(handler, |options| options.timeout(slow() * 2))
        .retry(RetryPolicy {
            max_attempts: None,
            // A copy that meets the original comes back when that is done.
            busy_delay: sized(Duration::from_secs(1), slow() - patience()),
            ..RetryPolicy::default()
        });
    let feed = Counted { feed, deliveries: Arc::clone(&deliveries) };
    let stop = CancellationToken::new();
    let seats = usize::try_from(seats()).unwrap();
    let consumer = Consumer::new(inbox.build().unwrap(), feed).concurrency(seats).drain(slow() * 2);
    let consumer = tokio::spawn(consumer.run(stop.clone()));
    let expected = usize::try_from(count()).unwrap();
    while fixture.effect_count().await < expected {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // What was answered in vain comes once more.
    tokio::time::sleep(patience() / 2).await;
    stop.cancel();
    consumer.await.unwrap();
    pool.close().await;
    assert_eq!((bodies.total(), bodies.overlaps()), (expected, 0), "each body runs once");
    assert_eq!(fixture.effects().await.len(), expected);
    deliveries.load(Ordering::SeqCst) - expected
}

#[test]
fn a_slow_handler_keeps_its_message_of_nats() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(place) = Place::shared::<NatsLink>() else { return };
        let options = NatsLink::options(&place).ack_wait(Duration::from_secs(2));
        let transport = Nats::new(options.confirm_timeout(CONFIRMED));
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
        let impatient = format!(
            "application:set_env(rabbit, consumer_timeout, {}), \
             application:set_env(rabbit, channel_tick_interval, 500).",
            patience().as_millis()
        );
        server.ctl(&["-q", "eval", &impatient]).await;
        let place = Place::new(server.url());
        let options = RabbitLink::options(&place).confirm_timeout(CONFIRMED);
        let transport = RabbitMq::new(options.order(Order::None)).unwrap();
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
        let transport = Nats::new(NatsLink::options(&place).confirm_timeout(CONFIRMED));
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
