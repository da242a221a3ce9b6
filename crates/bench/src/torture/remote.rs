//! The children's way to a broker, whichever it is: a publisher and a feed.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::consumer::{FromConsumer as _, PullConsumer, pull};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt as _;
use oncebox_conformance::server::Server;
use oncebox_core::{Acknowledge, Delivery, Envelope, Failure, Feed, Order, Publisher, Result, Subscriber};
use oncebox_flow::{CrashPoint, Probe};
use oncebox_transports::nats::{Nats, NatsOptions};
use oncebox_transports::rabbitmq::{RabbitMq, RabbitMqOptions};
use tokio::sync::Mutex;

use super::child::CHANNEL;
use super::socket::{SocketFeed, SocketPublisher};

/// The group of the workers.
const GROUP: &str = "books";
/// Less than the relay's patience, so that it hears what was confirmed.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(600);
/// The least that a server of NATS allows for a sign of life.
const ACK_WAIT: Duration = Duration::from_secs(1);
/// NATS serves another worker when the one it is pinned to is silent for this
/// long. The transport's requests last 5 s; its own default would leave most of
/// a torture to idle workers.
const PIN_TIMEOUT: Duration = Duration::from_secs(7);

fn rabbitmq(url: &str) -> RabbitMq {
    let options = RabbitMqOptions::from_url(url).expect("an address of a RabbitMQ server");
    let options = options.order(Order::SingleActive).confirm_timeout(CONFIRM_TIMEOUT);
    RabbitMq::new(options).expect("options that make sense")
}

fn nats(url: &str) -> Nats {
    let options = NatsOptions::from_url(url).expect("an address of a NATS server");
    Nats::new(options.order(Order::SingleActive).confirm_timeout(CONFIRM_TIMEOUT).ack_wait(ACK_WAIT))
}

/// Makes the queue that everything goes to, before anything is sent.
pub(super) async fn declare(url: &str) {
    if url.starts_with("amqp") {
        drop(rabbitmq(url).subscribe(CHANNEL, GROUP).await.expect("a queue"));
        return;
    }
    drop(nats(url).subscribe(CHANNEL, GROUP).await.expect("a consumer"));
    let context = jetstream::new(async_nats::connect(url).await.expect("the server answers"));
    let (stream, name) = nats_consumer(&context).await;
    let stream = context.get_stream(stream).await.expect("the stream");
    let consumer: PullConsumer = stream.get_consumer(&name).await.expect("the consumer");
    let whole = consumer.cached_info().config.clone();
    let mut config = pull::Config::try_from_consumer_config(whole).expect("it is pulled from");
    config.priority_timeout = PIN_TIMEOUT;
    stream.update_consumer(config).await.expect("a consumer that changes hands sooner");
}

/// The stream and the consumer that the transport has made.
async fn nats_consumer(context: &Context) -> (String, String) {
    let stream = context.stream_by_subject(CHANNEL).await.expect("a stream");
    let found = context.get_stream(&stream).await.expect("the stream");
    let mut names = found.consumer_names();
    let name = names.next().await.expect("a consumer").expect("its name");
    (stream, name)
}

/// What the workers have not answered for good.
pub(super) async fn backlog(url: &str, server: &Mutex<Server>) -> usize {
    if url.starts_with("amqp") {
        let told = server.lock().await.ctl(&["-q", "list_queues", "--no-table-headers", "messages"]).await;
        return told.split_whitespace().filter_map(|count| count.parse::<usize>().ok()).sum();
    }
    let context = jetstream::new(async_nats::connect(url).await.expect("the server answers"));
    let (stream, name) = nats_consumer(&context).await;
    let mut consumer: PullConsumer =
        context.get_consumer_from_stream(name, stream).await.expect("the consumer");
    let state = consumer.info().await.expect("its state");
    usize::try_from(state.num_pending).unwrap_or(usize::MAX).saturating_add(state.num_ack_pending)
}

/// Publishes to whatever the address names.
pub(super) enum Sender {
    Socket(SocketPublisher),
    RabbitMq(Probed<RabbitMq>),
    Nats(Probed<Nats>),
}

impl Sender {
    pub(super) fn to(address: &str, probe: Probe, halves: bool) -> Self {
        if address.starts_with("amqp") {
            Self::RabbitMq(Probed { publisher: rabbitmq(address), probe, halves })
        } else if address.starts_with("nats") {
            Self::Nats(Probed { publisher: nats(address), probe, halves })
        } else {
            Self::Socket(SocketPublisher::new(PathBuf::from(address), probe))
        }
    }
}

impl Publisher for Sender {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        match self {
            Self::Socket(publisher) => publisher.publish(batch).await,
            Self::RabbitMq(publisher) => publisher.publish(batch).await,
            Self::Nats(publisher) => publisher.publish(batch).await,
        }
    }
}

/// A publisher with the crash points that lie within a publish.
pub(super) struct Probed<P> {
    publisher: P,
    probe: Probe,
    /// Publishes a batch in two halves, to die between them.
    halves: bool,
}

impl<P: Publisher> Publisher for Probed<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let (first, second) = batch.split_at(if self.halves { batch.len().div_ceil(2) } else { batch.len() });
        let mut results = self.publisher.publish(first).await;
        let is_stored = results.iter().all(Result::is_ok);
        if is_stored {
            self.probe.reach(CrashPoint::R7).await.ok();
        }
        if is_stored && !second.is_empty() {
            results.append(&mut self.publisher.publish(second).await);
        }
        if results.iter().any(Result::is_ok) {
            self.probe.reach(CrashPoint::R4).await.ok();
        }
        // What follows a failure was not sent: it would overtake.
        results.resize(batch.len(), Err(Failure::destination("the first half was not taken")));
        results
    }
}

/// Deliveries of whatever the address names.
pub(super) enum Receiver {
    Socket(SocketFeed),
    RabbitMq(Box<<RabbitMq as Subscriber>::Feed>),
    Nats(<Nats as Subscriber>::Feed),
}

impl Receiver {
    /// Tries until the broker is there.
    pub(super) async fn from(address: &str) -> Self {
        let (rabbitmq, nats) = match address {
            rabbit if rabbit.starts_with("amqp") => (Some(rabbitmq(rabbit)), None),
            other if other.starts_with("nats") => (None, Some(nats(other))),
            socket => return Self::Socket(SocketFeed::new(PathBuf::from(socket))),
        };
        loop {
            if let Some(Ok(feed)) = on(rabbitmq.as_ref()).await {
                return Self::RabbitMq(Box::new(feed));
            }
            if let Some(Ok(feed)) = on(nats.as_ref()).await {
                return Self::Nats(feed);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn on<S: Subscriber>(transport: Option<&S>) -> Option<Result<S::Feed>> {
    Some(transport?.subscribe(CHANNEL, GROUP).await)
}

impl Feed for Receiver {
    type Ack = Answer;

    async fn next(&mut self) -> Result<Option<Delivery<Answer>>> {
        Ok(match self {
            Self::Socket(feed) => feed.next().await?.map(|delivery| named(delivery, Answer::Socket)),
            Self::RabbitMq(feed) => feed.next().await?.map(|delivery| named(delivery, Answer::RabbitMq)),
            Self::Nats(feed) => feed.next().await?.map(|delivery| named(delivery, Answer::Nats)),
        })
    }
}

fn named<A>(delivery: Delivery<A>, name: impl FnOnce(A) -> Answer) -> Delivery<Answer> {
    let Delivery { envelope, attempt, ack } = delivery;
    Delivery { envelope, attempt, ack: name(ack) }
}

/// The answer to a delivery.
pub(super) enum Answer {
    Socket(<SocketFeed as Feed>::Ack),
    RabbitMq(<<RabbitMq as Subscriber>::Feed as Feed>::Ack),
    Nats(<<Nats as Subscriber>::Feed as Feed>::Ack),
}

impl Acknowledge for Answer {
    async fn ack(self) -> Result<()> {
        match self {
            Self::Socket(ack) => ack.ack().await,
            Self::RabbitMq(ack) => ack.ack().await,
            Self::Nats(ack) => ack.ack().await,
        }
    }

    async fn nack(self, after: Duration, spent: bool) -> Result<()> {
        match self {
            Self::Socket(ack) => ack.nack(after, spent).await,
            Self::RabbitMq(ack) => ack.nack(after, spent).await,
            Self::Nats(ack) => ack.nack(after, spent).await,
        }
    }
}
