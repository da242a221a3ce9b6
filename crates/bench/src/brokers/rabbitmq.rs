//! RabbitMQ, and lapin by hand.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    ExchangeDeleteOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use oncebox_core::{Message as _, Subscriber as _};
use oncebox_transports::rabbitmq::{RabbitMq, RabbitMqOptions};

use super::WINDOW;
use super::bus::{Bus, DESTINATION, Dress, GROUP, attributes};
use super::latency::WORKERS;
use crate::order::{Order, new_id};

/// The queue that the product makes for the group.
const QUEUE: &str = "bench.orders.bench";
const PERSISTENT: u8 = 2;

#[derive(Clone)]
pub(super) struct RabbitMqBus {
    url: String,
    publishing: Channel,
    consuming: Channel,
}

async fn channel(url: &str) -> Channel {
    let connection = Connection::connect(url, ConnectionProperties::default()).await;
    let channel = connection.expect("the server answers").create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    channel
}

impl RabbitMqBus {
    async fn delete(&self) {
        // What is not there is no fault.
        let queue = self.consuming.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await;
        let exchange =
            self.consuming.exchange_delete(DESTINATION.into(), ExchangeDeleteOptions::default()).await;
        queue.map(drop).and(exchange).expect("a server of the bench's own to delete from");
    }
}

fn properties() -> BasicProperties {
    BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type("application/json".into())
        .with_message_id(new_id().into())
        .with_type(Order::NAME.into())
}

fn dressed(headers: &BTreeMap<ShortString, AMQPValue>, dress: Dress) -> BasicProperties {
    match dress {
        Dress::Bare => properties(),
        Dress::Full => properties().with_headers(FieldTable::from(headers.clone())),
    }
}

/// The first await writes the message, the second is its confirm.
macro_rules! publish {
    ($bus:expr, $body:expr, $properties:expr) => {
        $bus.publishing.basic_publish(
            DESTINATION.into(),
            Order::NAME.into(),
            BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
            $body,
            $properties,
        )
    };
}

fn assert_stored(confirmed: lapin::Result<Confirmation>) {
    assert!(matches!(confirmed, Ok(Confirmation::Ack(None))), "not stored: {confirmed:?}");
}

impl Bus for RabbitMqBus {
    type Transport = RabbitMq;
    const NAME: &'static str = "rabbitmq";

    async fn connect(url: &str) -> Self {
        let bus = Self { url: url.to_owned(), publishing: channel(url).await, consuming: channel(url).await };
        bus.delete().await;
        drop(bus.transport().subscribe(DESTINATION, GROUP).await.expect("a queue"));
        bus
    }

    async fn again(&self) -> Self {
        let (publishing, consuming) = (channel(&self.url).await, self.consuming.clone());
        Self { url: self.url.clone(), publishing, consuming }
    }

    fn transport(&self) -> RabbitMq {
        let options = RabbitMqOptions::from_url(&self.url).expect("an address of a RabbitMQ server");
        RabbitMq::new(options.window(WINDOW)).expect("options that make sense")
    }

    async fn empty(&self) {
        let purged = self.consuming.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await;
        purged.expect("an empty queue");
    }

    async fn publish_by_hand(&self, messages: u64, window: usize, dress: Dress) -> u64 {
        let headers = attributes(1).into_iter().map(|(name, value)| {
            (format!("cloudEvents:{name}").into(), AMQPValue::LongString(value.into_bytes().into()))
        });
        let headers: BTreeMap<ShortString, AMQPValue> = headers.collect();
        let (mut confirms, mut is_refilling) = (FuturesUnordered::new(), false);
        for n in 0..messages {
            // Half of them at once: one by one would mean one write to the socket each.
            while confirms.len() >= window || (is_refilling && confirms.len() > window / 2) {
                is_refilling = true;
                confirms.next().await.into_iter().for_each(assert_stored);
            }
            is_refilling = false;
            confirms.push(
                publish!(self, &Order::nth(n).payload(), dressed(&headers, dress)).await.expect("a publish"),
            );
        }
        while let Some(confirmed) = confirms.next().await {
            assert_stored(confirmed);
        }
        messages
    }

    async fn send_by_hand(&self, body: Vec<u8>) {
        assert_stored(publish!(self, &body, properties()).await.expect("a publish").await);
    }

    async fn consume_by_hand<H, F>(&self, handle: H)
    where
        H: Fn(Vec<u8>) -> F + Send + Sync,
        F: Future<Output = ()> + Send,
    {
        let channel = channel(&self.url).await;
        channel.basic_qos(100, BasicQosOptions::default()).await.expect("a prefetch");
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(QUEUE.into(), "".into(), options, FieldTable::default()).await;
        let handle = &handle;
        consumer
            .expect("a consumer")
            .for_each_concurrent(WORKERS, |delivery| async move {
                let delivery = delivery.expect("a delivery");
                handle(delivery.data.clone()).await;
                delivery.acker.ack(BasicAckOptions::default()).await.expect("an answer");
            })
            .await;
    }

    async fn remove(self) {
        self.delete().await;
    }
}
