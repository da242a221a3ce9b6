//! The brokers that experiments run over, by names of the experiment's own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use async_nats::ConnectOptions;
use async_nats::jetstream;
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::{Channel, Connection, ConnectionProperties};
use oncebox::{Order, Publisher, Subscriber};
use oncebox_conformance::fixture::service_url;
use oncebox_conformance::sample::DESTINATION;
use oncebox_conformance::server::Brand;
use oncebox_transports::nats::{Nats, NatsOptions};
use oncebox_transports::rabbitmq::{RabbitMq, RabbitMqOptions};

/// The group of all consumers here.
pub(super) const GROUP: &str = "books";
/// How long confirms may take: an outage must be noticed within an experiment.
pub(super) const CONFIRM_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Where a broker is, and under which names its things are ours.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) url: String,
    /// The exchange, or the prefix of all subjects.
    pub(crate) name: String,
}

impl Place {
    pub(crate) fn new(url: String) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { url, name: format!("x{}-{nanos}-{number}", std::process::id()) }
    }

    /// On the server that all tests share.
    pub(crate) fn shared<L: Link>() -> Option<Self> {
        let case = std::thread::current().name().unwrap_or("an experiment").to_owned();
        service_url(L::SHARED, &case).map(Self::new)
    }
}

/// One kind of broker.
pub(crate) trait Link: Send + Sync + 'static {
    type Transport: Publisher + Subscriber + Clone;
    const BRAND: Brand;
    /// The variable that names the shared server.
    const SHARED: &'static str;

    /// A transport to that place whose groups keep the order of keys, or do not.
    fn to(place: &Place, order: Order) -> Self::Transport;
    /// Removes what a transport has made there.
    fn clean(place: &Place) -> impl Future<Output = ()> + Send;
}

pub(crate) struct RabbitLink;
pub(crate) struct NatsLink;

impl RabbitLink {
    pub(crate) fn options(place: &Place) -> RabbitMqOptions {
        let options = RabbitMqOptions::from_url(&place.url).unwrap().exchange(&place.name);
        options.confirm_timeout(CONFIRM_TIMEOUT).heartbeat(Duration::from_secs(2))
    }

    /// The queue of the group.
    pub(super) fn queue(place: &Place) -> String {
        format!("{}.{DESTINATION}.{GROUP}", place.name)
    }

    pub(crate) async fn channel(place: &Place) -> Channel {
        let connection = Connection::connect(&place.url, ConnectionProperties::default()).await.unwrap();
        connection.create_channel().await.unwrap()
    }
}

impl Link for RabbitLink {
    type Transport = RabbitMq;
    const BRAND: Brand = Brand::RabbitMq;
    const SHARED: &'static str = "ONCEBOX_TEST_RABBITMQ_URL";

    fn to(place: &Place, order: Order) -> RabbitMq {
        RabbitMq::new(Self::options(place).order(order)).unwrap()
    }

    async fn clean(place: &Place) {
        let channel = Self::channel(place).await;
        channel.queue_delete(Self::queue(place).into(), QueueDeleteOptions::default()).await.unwrap();
        channel.exchange_delete(place.name.as_str().into(), ExchangeDeleteOptions::default()).await.unwrap();
    }
}

impl NatsLink {
    pub(crate) fn options(place: &Place) -> NatsOptions {
        let options = NatsOptions::from_url(&place.url).unwrap().prefix(&place.name);
        options.confirm_timeout(CONFIRM_TIMEOUT).ack_wait(Duration::from_secs(1))
    }

    pub(super) fn subject(place: &Place) -> String {
        format!("{}.{DESTINATION}", place.name)
    }

    pub(crate) async fn context(place: &Place) -> jetstream::Context {
        let (login, host) =
            place.url.trim_start_matches("nats://").rsplit_once('@').unwrap_or(("", &place.url));
        let (user, password) = login.split_once(':').unwrap_or_default();
        let options = match user {
            "" => ConnectOptions::new(),
            user => ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned()),
        };
        jetstream::new(options.connect(host).await.unwrap())
    }
}

impl Link for NatsLink {
    type Transport = Nats;
    const BRAND: Brand = Brand::Nats;
    const SHARED: &'static str = "ONCEBOX_TEST_NATS_URL";

    fn to(place: &Place, order: Order) -> Nats {
        Nats::new(Self::options(place).order(order))
    }

    async fn clean(place: &Place) {
        let context = Self::context(place).await;
        let stream = context.stream_by_subject(Self::subject(place)).await.unwrap();
        context.delete_stream(stream).await.unwrap();
    }
}
