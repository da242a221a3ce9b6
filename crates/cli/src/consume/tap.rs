//! A feed that counts, and ends when nothing came for long enough.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::Result;
use oncebox_core::transport::{Delivery, Feed};
use tokio::time::Instant;

use super::line::Tally;

/// Wraps a broker's feed.
pub(super) struct Tap<F> {
    feed: F,
    idle: Option<Duration>,
    /// Since when nothing came.
    since: Instant,
    is_fresh: bool,
    tally: Arc<Tally>,
}

impl<F: Feed> Tap<F> {
    pub(super) fn new(feed: F, idle: Option<Duration>, tally: Arc<Tally>) -> Self {
        Self { feed, idle, since: Instant::now(), is_fresh: true, tally }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Delivery<F::Ack>>> {
        // Handling takes its time; only waiting counts. A broker that is away is waited for, too.
        if std::mem::take(&mut self.is_fresh) {
            self.since = Instant::now();
        }
        let next = match self.idle {
            None => self.feed.next().await,
            Some(idle) => match tokio::time::timeout_at(self.since + idle, self.feed.next()).await {
                Ok(next) => next,
                Err(_elapsed) => return Ok(None),
            },
        };
        let Some(delivery) = next? else { return Ok(None) };
        self.is_fresh = true;
        self.tally.deliver();
        Ok(Some(delivery))
    }
}
