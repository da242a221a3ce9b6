//! The suite every transport passes, with a shared and with a single-active queue.

use oncebox_conformance::fixture::TransportFixture;
use oncebox_conformance::transport_suite;
use oncebox_core::{Capabilities, Order};
use oncebox_transports::rabbitmq::RabbitMq;

use super::server::Host;

pub(crate) struct Shared {
    _host: Host,
    transport: RabbitMq,
}

impl TransportFixture for Shared {
    type Transport = RabbitMq;

    const CAPABILITIES: Capabilities = RabbitMq::CAPABILITIES;

    async fn fresh() -> Option<Self> {
        let host = Host::fresh("the transport suite on RabbitMQ").await?;
        let transport = host.transport();
        Some(Self { _host: host, transport })
    }

    fn transport(&self) -> RabbitMq {
        self.transport.clone()
    }

    /// A quorum queue's limit is not exact: it takes what arrives before it has told the channels.
    fn bounded(&self, _messages: usize) -> Option<RabbitMq> {
        None
    }

    fn close(&self) -> bool {
        false
    }

    /// The virtual host goes with its handle.
    async fn clean(&self) {}
}

pub(crate) struct SingleActive(Shared);

impl TransportFixture for SingleActive {
    type Transport = RabbitMq;

    const CAPABILITIES: Capabilities = RabbitMq::SINGLE_ACTIVE;

    async fn fresh() -> Option<Self> {
        let host = Host::fresh("the transport suite on RabbitMQ").await?;
        let transport = RabbitMq::new(host.options().order(Order::SingleActive)).unwrap();
        Some(Self(Shared { _host: host, transport }))
    }

    fn transport(&self) -> RabbitMq {
        self.0.transport()
    }

    fn bounded(&self, messages: usize) -> Option<RabbitMq> {
        self.0.bounded(messages)
    }

    fn close(&self) -> bool {
        self.0.close()
    }

    async fn clean(&self) {}
}

mod shared {
    use super::*;
    transport_suite!(super::Shared);
}

mod single_active {
    use super::*;
    transport_suite!(super::SingleActive);
}
