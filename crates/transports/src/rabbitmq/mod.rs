//! RabbitMQ: confirmed, mandatory publishes into durable queues.
//!
//! Destinations: `orders` is the durable topic exchange `orders` with the
//! message's type as routing key; `orders/eu.new` the same exchange with that
//! key; `/jobs` the queue `jobs`. Groups have quorum queues.
//!
//! A message is confirmed when every queue it was routed to has it on disk (a
//! majority of a quorum queue's nodes). One that is routed nowhere comes back
//! and is not confirmed.
//!
//! lapin logs a returned message whole, payload included, at the level `warn`
//! under the target `lapin::returned_messages`: keep that target out of logs.

mod connection;
mod error;
mod options;
mod preflight;
mod publisher;
mod subscriber;
mod topology;
mod wire;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use oncebox_core::{Capabilities, Order, Result};

pub use self::options::{RabbitMqOptions, Topology};
pub use self::subscriber::{RabbitMqFeed, Reply};

use self::connection::{Link, Live, Target};
use self::error::Trouble;

/// A RabbitMQ server. Clones share their connections, one that publishes and one
/// that consumes, which are made when they are needed.
#[derive(Clone)]
pub struct RabbitMq {
    shared: Arc<Shared>,
}

struct Shared {
    options: RabbitMqOptions,
    target: RwLock<Arc<Target>>,
    publish: Link,
    consume: Link,
}

impl RabbitMq {
    /// What this transport can do while the members of a group share its queue.
    pub const CAPABILITIES: Capabilities = Capabilities {
        name: "rabbitmq",
        survives_process: true,
        order: Order::None,
        delayed_nack: true,
        exact_attempts: true,
    };

    /// What it can do with [`Order::SingleActive`].
    pub const SINGLE_ACTIVE: Capabilities =
        Capabilities { name: "rabbitmq, single active", order: Order::SingleActive, ..Self::CAPABILITIES };

    /// A server that is connected to when something is sent or subscribed to.
    ///
    /// # Errors
    /// [`Kind::Config`](oncebox_core::Kind::Config) if the options make no sense.
    pub fn new(options: RabbitMqOptions) -> Result<Self> {
        options.check()?;
        let target = Target { uri: Arc::clone(&options.uri), version: 0 };
        let shared = Shared {
            options,
            target: RwLock::new(Arc::new(target)),
            publish: Link::new("publishing"),
            consume: Link::new("consuming"),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A server that could be reached.
    ///
    /// # Errors
    /// [`Kind::Config`](oncebox_core::Kind::Config) if the options make no sense or the server refuses
    /// them, [`Kind::Unavailable`](oncebox_core::Kind::Unavailable) if it cannot be reached.
    pub async fn connect(options: RabbitMqOptions) -> Result<Self> {
        let server = Self::new(options)?;
        server.shared.publishing().await.map_err(|trouble| trouble.error("RabbitMQ"))?;
        Ok(server)
    }

    /// Goes by another address or other credentials from the next call on. What
    /// is under way is finished by the old ones; feeds change when they reconnect.
    ///
    /// # Errors
    /// [`Kind::Config`](oncebox_core::Kind::Config) if it is no address of a RabbitMQ server.
    pub fn replace_url(&self, url: &str) -> Result<()> {
        let uri = Arc::new(options::parse(url)?);
        let mut target = self.shared.target.write().unwrap_or_else(PoisonError::into_inner);
        if target.uri != uri {
            *target = Arc::new(Target { uri, version: target.version + 1 });
        }
        Ok(())
    }
}

impl Shared {
    async fn publishing(&self) -> Result<Arc<Live>, Trouble> {
        self.publish.get(&self.target(), &self.options).await
    }

    async fn consuming(&self) -> Result<Arc<Live>, Trouble> {
        self.consume.get(&self.target(), &self.options).await
    }

    fn target(&self) -> Arc<Target> {
        Arc::clone(&self.target.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = self.shared.target();
        f.debug_struct("RabbitMq").field("server", &options::place(&target.uri)).finish_non_exhaustive()
    }
}
