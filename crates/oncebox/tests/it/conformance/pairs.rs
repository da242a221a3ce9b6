//! The path on each database store over each broker, one member of a group at a time.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use oncebox::{Capabilities, Order};
use oncebox_conformance::TransportFixture;
use oncebox_conformance::path::scene::GROUP;
use oncebox_conformance::sample::DESTINATION;
use oncebox_transports::nats::{Nats, Topology};
use oncebox_transports::rabbitmq::RabbitMq;

use crate::experiments::link::{NatsLink, Place, RabbitLink};

/// Where cases subscribe; what goes anywhere else is not confirmed.
const DESTINATIONS: [&str; 2] = [DESTINATION, "echoes"];
/// Cases count passes of a relay, so a confirm that is merely slow must not be taken for a lost one.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Rabbit {
    place: Place,
    transport: RabbitMq,
}

impl TransportFixture for Rabbit {
    type Transport = RabbitMq;

    const CAPABILITIES: Capabilities = RabbitMq::SINGLE_ACTIVE;

    async fn fresh() -> Option<Self> {
        let place = Place::shared::<RabbitLink>()?;
        let options = RabbitLink::options(&place).confirm_timeout(CONFIRM_TIMEOUT).order(Order::SingleActive);
        Some(Self { place, transport: RabbitMq::new(options).unwrap() })
    }

    fn transport(&self) -> RabbitMq {
        self.transport.clone()
    }

    fn bounded(&self, _messages: usize) -> Option<RabbitMq> {
        None
    }

    fn close(&self) -> bool {
        false
    }

    async fn clean(&self) {
        let (name, channel) = (&self.place.name, RabbitLink::channel(&self.place).await);
        for destination in DESTINATIONS {
            let queue = format!("{name}.{destination}.{GROUP}");
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
        }
        channel.exchange_delete(name.as_str().into(), ExchangeDeleteOptions::default()).await.unwrap();
    }
}

pub(crate) struct JetStream {
    place: Place,
    transport: Nats,
}

impl JetStream {
    fn stream(&self) -> String {
        self.place.name.to_uppercase()
    }
}

impl TransportFixture for JetStream {
    type Transport = Nats;

    const CAPABILITIES: Capabilities = Nats::capabilities(Order::SingleActive);

    async fn fresh() -> Option<Self> {
        let place = Place::shared::<NatsLink>()?;
        let options = NatsLink::options(&place).confirm_timeout(CONFIRM_TIMEOUT).order(Order::SingleActive);
        // A stream would be made for a destination that nobody subscribes to.
        let transport = Nats::new(options.stream_topology(Topology::Check));
        let fixture = Self { place, transport };
        let config = Config {
            name: fixture.stream(),
            subjects: DESTINATIONS.map(|name| format!("{}.{name}", fixture.place.name)).to_vec(),
            discard: DiscardPolicy::New,
            duplicate_window: Duration::from_secs(120),
            ..Config::default()
        };
        NatsLink::context(&fixture.place).await.create_stream(config).await.unwrap();
        Some(fixture)
    }

    fn transport(&self) -> Nats {
        self.transport.clone()
    }

    fn bounded(&self, _messages: usize) -> Option<Nats> {
        None
    }

    fn close(&self) -> bool {
        self.transport.close();
        true
    }

    async fn clean(&self) {
        self.transport.close();
        NatsLink::context(&self.place).await.delete_stream(self.stream()).await.unwrap();
    }
}

mod sqlite_rabbitmq {
    use super::Rabbit;
    use crate::conformance::sqlite::SqliteFixture;
    oncebox_conformance::pair_suite!(SqliteFixture, Rabbit);
}

mod sqlite_nats {
    use super::JetStream;
    use crate::conformance::sqlite::SqliteFixture;
    oncebox_conformance::pair_suite!(SqliteFixture, JetStream);
}

mod postgres_rabbitmq {
    use super::Rabbit;
    use crate::conformance::postgres::PostgresFixture;
    oncebox_conformance::pair_suite!(PostgresFixture, Rabbit);
}

mod postgres_nats {
    use super::JetStream;
    use crate::conformance::postgres::PostgresFixture;
    oncebox_conformance::pair_suite!(PostgresFixture, JetStream);
}
