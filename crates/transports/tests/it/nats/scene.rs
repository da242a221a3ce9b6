//! A prefix, a stream and a transport of a test's own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy};
use async_nats::jetstream::{Context, ErrorCode};
use oncebox_conformance::fixture::service_url;
use oncebox_core::{Acknowledge, Delivery, Feed};
use oncebox_transports::nats::{Nats, NatsOptions, Topology};

/// A delivery or a state that has not come by then does not come.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
const GLANCE: Duration = Duration::from_millis(20);

/// One test's part of a server.
pub(super) struct Scene {
    pub(super) url: String,
    pub(super) prefix: String,
    pub(super) stream: String,
    pub(super) context: Context,
}

impl Scene {
    /// On the server that was started for tests, if there is one.
    pub(super) async fn fresh(case: &str) -> Option<Self> {
        let url = service_url("ONCEBOX_TEST_NATS_URL", case)?;
        Some(Self::on(url).await)
    }

    /// On this server; makes a safe stream for whatever is below the prefix but `nowhere`.
    pub(super) async fn on(url: String) -> Self {
        let name = unique();
        let mut context = async_nats::jetstream::new(client(&url).await);
        // A disk that others keep busy makes the server slow, and that is not what is tested.
        context.set_timeout(PATIENCE);
        let scene = Self { prefix: name.clone(), stream: name.to_uppercase(), url, context };
        scene.context.create_stream(scene.config()).await.expect("a stream can be made");
        scene
    }

    /// The stream as it is made.
    pub(super) fn config(&self) -> Config {
        let subjects = ["bookings", "elsewhere", "echoes"];
        Config {
            name: self.stream.clone(),
            subjects: subjects
                .iter()
                .flat_map(|name| [format!("{}.{name}", self.prefix), format!("{}.{name}.>", self.prefix)])
                .collect(),
            discard: DiscardPolicy::New,
            duplicate_window: Duration::from_secs(120),
            ..Config::default()
        }
    }

    /// Options that make consumers, but no stream for whatever is published to.
    pub(super) fn options(&self) -> NatsOptions {
        NatsOptions::from_url(&self.url).unwrap().prefix(&self.prefix).stream_topology(Topology::Check)
    }

    pub(super) fn transport(&self) -> Nats {
        Nats::new(self.options())
    }

    pub(super) fn subject(&self, destination: &str) -> String {
        format!("{}.{destination}", self.prefix)
    }

    /// How many messages the stream holds; a server that has just come back may not tell at once.
    pub(super) async fn stored(&self) -> u64 {
        let asked = Instant::now();
        loop {
            match self.context.get_stream(&self.stream).await {
                Ok(stream) => return stream.cached_info().state.messages,
                Err(error) => assert!(asked.elapsed() < PATIENCE, "{error}"),
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Makes the stream anew: nothing is stored in it, and no id is known.
    pub(super) async fn remake(&self) {
        // Only the server's word counts. What is made while the old one is still there is the old one.
        until("the stream is gone", async || {
            self.clean().await;
            let found = self.context.get_stream(&self.stream).await.map_err(|error| error.kind());
            matches!(found, Err(GetStreamErrorKind::JetStream(cause)) if cause.error_code() == ErrorCode::STREAM_NOT_FOUND)
        })
        .await;
        self.context.create_stream(self.config()).await.expect("a stream can be made");
    }

    pub(super) async fn clean(&self) {
        self.context.delete_stream(&self.stream).await.ok();
    }
}

/// A client of the test's own. It does not log in with what the URL says by itself.
pub(super) async fn client(url: &str) -> async_nats::Client {
    let address: async_nats::ServerAddr = url.parse().unwrap();
    let options = match (address.username(), address.password()) {
        (Some(user), Some(password)) => {
            async_nats::ConnectOptions::with_user_and_password(user.into(), password.into())
        }
        _ => async_nats::ConnectOptions::new(),
    };
    options.connect(url).await.expect("the server of the tests answers")
}

pub(super) fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    format!("t{}-{time}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The next delivery, whatever errors come before it.
pub(super) async fn next<F: Feed>(feed: &mut F) -> Delivery<F::Ack> {
    let next = async {
        loop {
            match feed.next().await {
                Ok(delivery) => return delivery.expect("the feed goes on"),
                Err(_) => tokio::time::sleep(GLANCE).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("a delivery comes")
}

/// The ids of the next `count` deliveries, each acknowledged.
pub(super) async fn finish<F: Feed>(feed: &mut F, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let delivery = next(feed).await;
        ids.push(delivery.envelope.id.clone());
        delivery.ack.ack().await.unwrap();
    }
    ids
}

/// Waits until `holds` does.
pub(super) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(GLANCE).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}
