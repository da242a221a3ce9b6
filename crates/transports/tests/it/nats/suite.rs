//! The transport suite, with members that share and with one member at a time.

use async_nats::jetstream::stream::RetentionPolicy;
use oncebox_conformance::fixture::TransportFixture;
use oncebox_core::{Capabilities, Order};
use oncebox_transports::nats::Nats;

use super::scene::Scene;

struct Parts {
    scene: Scene,
    transport: Nats,
    bounded: Nats,
}

impl Parts {
    async fn fresh(order: Order) -> Option<Self> {
        let scene = Scene::fresh("the transport suite on NATS").await?;
        let transport = Nats::new(scene.options().order(order));
        // Acknowledgements go by another connection than what is published after them.
        let bounded = Nats::new(scene.options().order(order).confirm_acks(true));
        Some(Self { scene, transport, bounded })
    }

    /// Limits the stream, and lets go of what was acknowledged.
    fn bounded(&self, messages: usize) -> Nats {
        let config = async_nats::jetstream::stream::Config {
            max_messages: i64::try_from(messages).unwrap(),
            retention: RetentionPolicy::Interest,
            ..self.scene.config()
        };
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                self.scene.context.update_stream(config).await.expect("the stream can be limited");
            });
        });
        self.bounded.clone()
    }
}

macro_rules! fixture {
    ($name:ident, $order:expr) => {
        struct $name(Parts);

        impl TransportFixture for $name {
            type Transport = Nats;

            const CAPABILITIES: Capabilities = Nats::capabilities($order);

            async fn fresh() -> Option<Self> {
                Parts::fresh($order).await.map(Self)
            }

            fn transport(&self) -> Nats {
                self.0.transport.clone()
            }

            fn bounded(&self, messages: usize) -> Option<Nats> {
                Some(self.0.bounded(messages))
            }

            fn close(&self) -> bool {
                self.0.transport.close();
                true
            }

            async fn clean(&self) {
                self.0.scene.clean().await;
            }
        }
    };
}

fixture!(Shared, Order::None);
fixture!(Ordered, Order::SingleActive);

mod shared {
    use super::Shared;
    oncebox_conformance::transport_suite!(Shared);
}

mod ordered {
    use super::Ordered;
    oncebox_conformance::transport_suite!(Ordered);
}
