//! Delivers what a queue holds, answered by hand.
//!
//! An answer goes out on the channel its delivery came by; when that is gone
//! the server delivers everything again, which the inbox recognises. Order by
//! key is kept in [`Lanes`]: a queue that one consumer at a time reads from in
//! order, one delivery of a key out at a time.

mod reply;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery as Message;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use oncebox_core::{Delivery, Feed, Result, Subscriber};
use tokio::time::timeout;
use tracing::{debug, info};

use self::reply::Copy;
pub use self::reply::Reply;
use super::connection::Live;
use super::error::{Trouble, within};
use super::wire::Route;
use super::{RabbitMq, Shared, topology, wire};
use crate::lanes::{LaneAck, Lanes, LanesOptions};

/// How long closing a channel may take; the server notices by itself otherwise.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

impl Subscriber for RabbitMq {
    type Feed = RabbitMqFeed;
    /// The server counts every delivery that was not answered, those a dying
    /// consumer had merely prefetched included: ten crashes would bury a message
    /// nobody had looked at. The inbox counts exactly.
    const COUNTS_DEATHS: bool = false;

    /// Joins the queue `{exchange}.{group}`, bound to everything the exchange
    /// gets; `{exchange}.{key}.{group}` if the destination names a routing key;
    /// the queue itself if it names one.
    async fn subscribe(&self, destination: &str, group: &str) -> Result<RabbitMqFeed> {
        let shared = Arc::clone(&self.shared);
        let what = || format!("subscribing to {destination} as {group}");
        let route =
            Route::of(destination, &shared.options).map_err(|text| Trouble::config(text).error(what()))?;
        let options = &shared.options;
        let lanes = Lanes::new(LanesOptions {
            ordered: options.is_ordered(),
            hold: options.hold,
            prefetch: usize::from(options.prefetch),
            keep_alive: None,
        });
        let mut feed = RabbitMqFeed {
            lanes,
            stream: None,
            destination: destination.to_owned(),
            group: group.to_owned(),
            route,
            shared,
        };
        let stream = feed.open().await.map_err(|trouble| trouble.error(what()))?;
        feed.stream = Some(stream);
        Ok(feed)
    }
}

/// A consumer on a channel of its own.
struct Stream {
    consumer: Consumer,
    channel: Channel,
    queue: ShortString,
    /// Keeps the connection.
    _live: Arc<Live>,
}

impl Stream {
    fn receive(&self, message: Message, shared: &Arc<Shared>, destination: &str) -> Delivery<Reply> {
        let Message { properties, data, acker, .. } = message;
        // Kept only where it may be needed: it doubles what a delivery weighs.
        let copy = (!shared.options.is_ordered())
            .then(|| Copy { properties: properties.clone(), body: data.clone() });
        let (envelope, attempts) = wire::decode(&properties, data, destination);
        let ack = Reply {
            shared: Arc::clone(shared),
            acker,
            channel: self.channel.clone(),
            queue: self.queue.clone(),
            copy,
        };
        Delivery { envelope, attempt: attempts.saturating_add(1), ack }
    }
}

/// One member of a group.
pub struct RabbitMqFeed {
    lanes: Lanes<Reply>,
    stream: Option<Stream>,
    destination: String,
    group: String,
    route: Route,
    shared: Arc<Shared>,
}

impl Feed for RabbitMqFeed {
    type Ack = LaneAck<Reply>;

    async fn next(&mut self) -> Result<Option<Delivery<LaneAck<Reply>>>> {
        loop {
            if let Some(delivery) = self.lanes.take() {
                return Ok(Some(delivery));
            }
            let stream = match &mut self.stream {
                Some(stream) => stream,
                empty => {
                    let what = || format!("subscribing to {} as {} again", self.destination, self.group);
                    let opened = open(&self.shared, &self.route, &self.group).await;
                    empty.insert(opened.map_err(|trouble| trouble.error(what()))?)
                }
            };
            // Never more than the lanes have room for: the server sends no more
            // than the prefetch unanswered.
            let arrived = tokio::select! {
                arrived = stream.consumer.next() => arrived,
                () = self.lanes.changed() => continue,
            };
            match arrived {
                Some(Ok(message)) => {
                    let delivery = stream.receive(message, &self.shared, &self.destination);
                    self.lanes.push(delivery);
                }
                Some(Err(error)) => return Err(self.lose(error.into())),
                // Sent when the queue is deleted or loses its node.
                None => return Err(self.lose(Trouble::unavailable("the server cancelled the consumer"))),
            }
        }
    }
}

impl RabbitMqFeed {
    async fn open(&self) -> Result<Stream, Trouble> {
        open(&self.shared, &self.route, &self.group).await
    }

    /// Forgets the channel and what came by it; the next call opens another.
    fn lose(&mut self, trouble: Trouble) -> oncebox_core::Error {
        self.lanes.reset();
        self.stream = None;
        let trouble = Trouble::unavailable(trouble.text);
        trouble.error(format!("the feed of {} to {} was interrupted", self.destination, self.group))
    }
}

/// Opens a channel, sees to the queue and consumes from it.
async fn open(shared: &Arc<Shared>, route: &Route, group: &str) -> Result<Stream, Trouble> {
    let options = &shared.options;
    let live = shared.consuming().await?;
    let queue = topology::queue(&live, route, group, options).await?;
    let channel = live.channel().await?;
    let qos = channel.basic_qos(options.prefetch, BasicQosOptions::default());
    live.heard(within(options.call_timeout, "basic.qos", qos).await)?;
    let flags = BasicConsumeOptions::default();
    let consume = channel.basic_consume(queue.clone(), ShortString::default(), flags, FieldTable::default());
    let consumer = live.heard(within(options.call_timeout, "basic.consume", consume).await)?;
    info!(queue = queue.as_str(), "rabbitmq.subscribed");
    Ok(Stream { consumer, channel, queue, _live: live })
}

impl Drop for RabbitMqFeed {
    /// What is ordered goes back all at once, what is out included: given back
    /// one by one, the next consumer would get what is behind a message that is
    /// still being handled. Otherwise what is out can still be answered.
    fn drop(&mut self) {
        let Some(Stream { consumer, channel, _live, .. }) = self.stream.take() else { return };
        if !self.shared.options.is_ordered() {
            return;
        }
        drop(self.lanes.drain_unanswered());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        drop(runtime.spawn(async move {
            let closed = timeout(CLOSE_TIMEOUT, channel.close(200, "the feed was dropped".into())).await;
            debug!(in_time = closed.is_ok(), "rabbitmq.feed_closed");
            drop(consumer);
        }));
    }
}

impl fmt::Debug for RabbitMqFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqFeed")
            .field("destination", &self.destination)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}
