//! The broker of a torture: one in the parent that makes faults of its own, or
//! a real server that is killed and started again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use oncebox_conformance::server::{Brand, Server};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::chance::Chance;
use super::memory::{Counts, MemoryBroker};
use super::remote;

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Memory,
    Rabbitmq,
    Nats,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Rabbitmq => Brand::RabbitMq.name(),
            Self::Nats => Brand::Nats.name(),
        }
    }

    /// The server's program, if this is a server.
    pub(super) const fn brand(self) -> Option<Brand> {
        match self {
            Self::Memory => None,
            Self::Rabbitmq => Some(Brand::RabbitMq),
            Self::Nats => Some(Brand::Nats),
        }
    }
}

/// A broker at work.
pub(super) enum Broker {
    Memory { broker: MemoryBroker, socket: PathBuf },
    Server(Tormented),
}

impl Broker {
    /// Starts it and declares what the children need.
    pub(super) async fn start(kind: Kind, directory: &Path, mut chance: Chance) -> Self {
        let Some(brand) = kind.brand() else {
            let socket = directory.join("broker");
            return Self::Memory { broker: MemoryBroker::start(&socket, chance), socket };
        };
        let server = Server::start(brand, "the torture").await.expect("a server to torture");
        remote::declare(&server.url()).await;
        // RabbitMQ forgets a queue that it was killed within a second of declaring.
        server.settle().await;
        Self::Server(Tormented::new(brand, server, Chance::new(chance.next())))
    }

    /// Where children find it.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Memory { socket, .. } => socket.to_string_lossy().into_owned(),
            Self::Server(tormented) => tormented.url.clone(),
        }
    }

    /// No more faults from here on.
    pub(super) async fn heal(&self) {
        match self {
            Self::Memory { broker, .. } => broker.heal(),
            Self::Server(tormented) => tormented.heal().await,
        }
    }

    /// Messages stored and not acknowledged.
    pub(super) async fn backlog(&self) -> usize {
        match self {
            Self::Memory { broker, .. } => broker.backlog(),
            Self::Server(tormented) => remote::backlog(&tormented.url, &tormented.server).await,
        }
    }

    /// What the broker in the parent did to its messages.
    pub(super) fn counts(&self) -> Option<Counts> {
        match self {
            Self::Memory { broker, .. } => Some(broker.counts()),
            Self::Server(_) => None,
        }
    }

    /// How often it was killed.
    pub(super) fn kills(&self) -> u64 {
        match self {
            Self::Memory { .. } => 0,
            Self::Server(tormented) => tormented.kills.load(Ordering::SeqCst),
        }
    }
}

/// A server that is killed now and then, at moments of its own: a restart takes
/// seconds, and the children go on dying meanwhile.
pub(super) struct Tormented {
    url: String,
    server: Arc<Mutex<Server>>,
    kills: Arc<AtomicU64>,
    healed: CancellationToken,
    killer: TaskTracker,
}

impl Tormented {
    fn new(brand: Brand, server: Server, mut chance: Chance) -> Self {
        let url = server.url();
        let (server, kills) = (Arc::new(Mutex::new(server)), Arc::new(AtomicU64::new(0)));
        let (healed, killer) = (CancellationToken::new(), TaskTracker::new());
        // A node of RabbitMQ takes some seconds to come back; without a life in
        // between, nothing would ever be stored.
        let (from, to) = if brand == Brand::RabbitMq { (1_500, 7_000) } else { (1_000, 6_000) };
        let (victim, count, end) = (Arc::clone(&server), Arc::clone(&kills), healed.clone());
        killer.spawn(async move {
            while end.run_until_cancelled(tokio::time::sleep(chance.millis(from, to))).await.is_some() {
                let mut server = victim.lock().await;
                server.kill().await;
                count.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(chance.millis(0, 1_500)).await;
                server.resume().await;
            }
        });
        killer.close();
        Self { url, server, kills, healed, killer }
    }

    async fn heal(&self) {
        self.healed.cancel();
        tokio::time::timeout(Duration::from_secs(90), self.killer.wait()).await.expect("the server is back");
    }
}
