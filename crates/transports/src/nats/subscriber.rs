//! Feeds: one task per feed pulls, keeps what it holds alive and hands it out.

mod answer;
mod attempts;
mod pull;
mod pump;
mod takeover;

use oncebox_core::{Delivery, Error, Feed, Kind, Result, Subscriber};
use tokio::sync::mpsc;

use super::Nats;
use crate::lanes::LaneAck;

pub use self::answer::NatsAnswer;

pub(super) use self::attempts::Attempts;
use self::pump::Pump;

impl Subscriber for Nats {
    type Feed = NatsFeed;

    /// A group that is new begins with the oldest message of the stream. It is
    /// kept when its feeds are gone.
    async fn subscribe(&self, destination: &str, group: &str) -> Result<NatsFeed> {
        if self.inner.closed.is_cancelled() {
            return Err(Error::new(Kind::Unavailable, "the transport is closed"));
        }
        let subject = super::wire::subject(&self.inner.options.prefix, destination)
            .map_err(|problem| Error::new(Kind::Config, problem))?;
        // One: what is handed over is kept alive, but no other member can have it.
        let (deliveries, feed) = mpsc::channel(1);
        let mut pump = Pump::new(self.clone(), subject, group.to_owned(), deliveries);
        let session = pump.open().await?;
        self.inner.feeds.spawn(pump.run(session));
        Ok(NatsFeed { deliveries: feed })
    }
}

/// One member of a group.
#[derive(Debug)]
pub struct NatsFeed {
    deliveries: mpsc::Receiver<Result<Delivery<LaneAck<NatsAnswer>>>>,
}

impl Feed for NatsFeed {
    type Ack = LaneAck<NatsAnswer>;

    async fn next(&mut self) -> Result<Option<Delivery<Self::Ack>>> {
        self.deliveries.recv().await.transpose()
    }
}
