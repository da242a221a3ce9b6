//! Stations 6 and 7 joined: deliveries are taken from a feed, given to an
//! inbox and answered.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::Verdict;
use oncebox_core::store::{Dedup, Mailbox};
use oncebox_core::transport::{Acknowledge, Delivery, Feed};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::inbox::{Inbox, Intake};

/// The wait after a feed failed.
const FEED_BACKOFF: Duration = Duration::from_secs(1);

/// Feeds one inbox.
#[derive(Debug)]
pub struct Consumer<S: Mailbox + Dedup, F> {
    inbox: Inbox<S>,
    feed: F,
    concurrency: usize,
    drain: Duration,
}

impl<S: Mailbox + Dedup, F: Feed> Consumer<S, F> {
    /// A consumer that handles one delivery at a time.
    #[must_use]
    pub const fn new(inbox: Inbox<S>, feed: F) -> Self {
        Self { inbox, feed, concurrency: 1, drain: Duration::from_secs(30) }
    }

    /// Deliveries handled at once.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// How long a stop waits for handlers that are running. Default 30 s.
    #[must_use]
    pub const fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Handles deliveries until `stop` is cancelled or the feed ends, then
    /// waits for running handlers. True if all of them ended in time; those
    /// that did not are rolled back or redelivered, never lost.
    pub async fn run(mut self, stop: CancellationToken) -> bool {
        let seats = Arc::new(Semaphore::new(self.concurrency));
        let tasks = TaskTracker::new();
        loop {
            let Some(Ok(seat)) = stop.run_until_cancelled(Arc::clone(&seats).acquire_owned()).await else {
                break;
            };
            let Some(next) = stop.run_until_cancelled(self.feed.next()).await else { break };
            match next {
                Ok(Some(delivery)) => {
                    let inbox = self.inbox.clone();
                    // Here, where deliveries are still in order.
                    let intake = inbox.enlist(&delivery.envelope);
                    tasks.spawn(async move {
                        answer(&inbox, delivery, intake).await;
                        drop(seat);
                    });
                }
                Ok(None) => break,
                Err(error) => {
                    warn!(error = error.chain(), "consumer.feed_failed");
                    stop.run_until_cancelled(tokio::time::sleep(FEED_BACKOFF)).await;
                }
            }
        }
        tasks.close();
        let drained = tokio::time::timeout(self.drain, tasks.wait()).await.is_ok();
        info!(drained, "consumer.stopped");
        drained
    }
}

async fn answer<S: Mailbox + Dedup, A: Acknowledge>(inbox: &Inbox<S>, delivery: Delivery<A>, intake: Intake) {
    let Delivery { envelope, attempt, ack } = delivery;
    let id = envelope.id.clone();
    let answered = match inbox.deliver_enlisted(envelope, attempt, intake).await {
        Verdict::Done | Verdict::Dead { .. } => ack.ack().await,
        Verdict::Retry { after, spent } => ack.nack(after, spent).await,
    };
    if let Err(error) = answered {
        // It will come again and be recognised as a duplicate.
        warn!(id, error = error.chain(), "consumer.answer_lost");
    }
}
