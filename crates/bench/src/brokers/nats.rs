//! NATS JetStream, and async-nats by hand.

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::context::{PublishAckFuture, PublishError};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, HeaderMap};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use oncebox_core::Subscriber as _;
use oncebox_transports::nats::{Nats, NatsOptions};

use super::WINDOW;
use super::bus::{Bus, DESTINATION, Dress, GROUP, attributes};
use super::latency::WORKERS;
use crate::order::{Order, new_id};

/// The stream that the product makes for the destination.
const STREAM: &str = "BENCH";

#[derive(Clone)]
pub(super) struct NatsBus {
    url: String,
    context: Context,
}

impl NatsBus {
    async fn publish(&self, body: Vec<u8>) -> Result<PublishAckFuture, PublishError> {
        self.context.publish(DESTINATION, body.into()).await
    }
}

async fn context(url: &str) -> Context {
    // The client takes no user from an address.
    let (login, host) = url.trim_start_matches("nats://").rsplit_once('@').unwrap_or(("", url));
    let (user, password) = login.split_once(':').unwrap_or_default();
    let options = match user {
        "" => ConnectOptions::new(),
        user => ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned()),
    };
    jetstream::new(options.connect(host).await.expect("the server answers"))
}

impl Bus for NatsBus {
    type Transport = Nats;
    const NAME: &'static str = "nats";

    async fn connect(url: &str) -> Self {
        let bus = Self { url: url.to_owned(), context: context(url).await };
        bus.context.delete_stream(STREAM).await.ok();
        drop(bus.transport().subscribe(DESTINATION, GROUP).await.expect("a consumer"));
        bus
    }

    async fn again(&self) -> Self {
        Self { url: self.url.clone(), context: context(&self.url).await }
    }

    fn transport(&self) -> Nats {
        let options = NatsOptions::from_url(&self.url).expect("an address of a NATS server");
        Nats::new(options.window(WINDOW))
    }

    async fn empty(&self) {
        let stream = self.context.get_stream(STREAM).await.expect("the stream");
        stream.purge().await.expect("an empty stream");
    }

    async fn publish_by_hand(&self, messages: u64, window: usize, dress: Dress) -> u64 {
        let names: Vec<(String, String)> =
            attributes(1).into_iter().map(|(name, value)| (format!("ce-{name}"), value)).collect();
        let (mut confirms, mut is_refilling) = (FuturesUnordered::new(), false);
        for n in 0..messages {
            // Half of them at once: one by one would mean one write to the socket each.
            while confirms.len() >= window || (is_refilling && confirms.len() > window / 2) {
                is_refilling = true;
                confirms.next().await.map(|confirmed: Result<_, PublishError>| confirmed.expect("a confirm"));
            }
            is_refilling = false;
            let body = Order::nth(n).payload();
            let sent = match dress {
                Dress::Bare => self.publish(body).await,
                Dress::Full => {
                    let mut headers = HeaderMap::new();
                    for (name, value) in &names {
                        headers.insert(name.as_str(), value.as_str());
                    }
                    let id = new_id();
                    headers.insert("ce-id", id.as_str());
                    headers.insert("content-type", "application/json");
                    headers.insert("Nats-Msg-Id", id.as_str());
                    self.context.publish_with_headers(DESTINATION, headers, body.into()).await
                }
            };
            let sent = sent.expect("a publish");
            confirms.push(sent.into_future());
        }
        while let Some(confirmed) = confirms.next().await {
            confirmed.expect("a confirm");
        }
        messages
    }

    async fn send_by_hand(&self, body: Vec<u8>) {
        self.publish(body).await.expect("a publish").await.expect("a confirm");
    }

    async fn consume_by_hand<H, F>(&self, handle: H)
    where
        H: Fn(Vec<u8>) -> F + Send + Sync,
        F: Future<Output = ()> + Send,
    {
        let stream = self.context.get_stream(STREAM).await.expect("the stream");
        let config = pull::Config { durable_name: Some("by-hand".into()), ..pull::Config::default() };
        let consumer = stream.get_or_create_consumer("by-hand", config).await.expect("a consumer");
        let messages = consumer.messages().await.expect("deliveries");
        let handle = &handle;
        messages
            .for_each_concurrent(WORKERS, |message| async move {
                let message = message.expect("a delivery");
                handle(message.payload.to_vec()).await;
                message.ack().await.expect("an answer");
            })
            .await;
    }

    async fn remove(self) {
        self.context.delete_stream(STREAM).await.expect("the stream goes");
    }
}
