//! The protocol broken on purpose, in wrappers around honest parts: a checker
//! that does not notice is worth nothing.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::{Acknowledge, Delivery, Envelope, Failure, Feed, Publisher, Result};

/// A publisher that may say "confirmed" before it has sent anything.
#[derive(Debug)]
pub struct MaybeHasty<P> {
    publisher: Arc<P>,
    delay: Option<Duration>,
}

impl<P> MaybeHasty<P> {
    /// Sends only after the delay what it has called confirmed; without one it is honest.
    pub fn new(publisher: P, delay: Option<Duration>) -> Self {
        Self { publisher: Arc::new(publisher), delay }
    }
}

impl<P: Publisher> Publisher for MaybeHasty<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let Some(delay) = self.delay else { return self.publisher.publish(batch).await };
        let (publisher, later) = (Arc::clone(&self.publisher), batch.to_vec());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            publisher.publish(&later).await
        });
        vec![Ok(()); batch.len()]
    }
}

/// A feed that may acknowledge before it hands over.
#[derive(Debug)]
pub struct MaybeEager<F> {
    feed: F,
    delay: Option<Duration>,
}

impl<F> MaybeEager<F> {
    /// Acknowledges, and hands over after the delay; without one it is honest.
    pub fn new(feed: F, delay: Option<Duration>) -> Self {
        Self { feed, delay }
    }
}

impl<F: Feed> Feed for MaybeEager<F> {
    type Ack = MaybeAck<F::Ack>;

    async fn next(&mut self) -> Result<Option<Delivery<Self::Ack>>> {
        let Some(Delivery { envelope, attempt, ack }) = self.feed.next().await? else { return Ok(None) };
        let ack = match self.delay {
            Some(delay) => {
                ack.ack().await?;
                tokio::time::sleep(delay).await;
                MaybeAck(None)
            }
            None => MaybeAck(Some(ack)),
        };
        Ok(Some(Delivery { envelope, attempt, ack }))
    }
}

/// An answer, if it was not given already.
#[derive(Debug)]
pub struct MaybeAck<A>(Option<A>);

impl<A: Acknowledge> Acknowledge for MaybeAck<A> {
    async fn ack(self) -> Result<()> {
        match self.0 {
            Some(ack) => ack.ack().await,
            None => Ok(()),
        }
    }

    async fn nack(self, after: Duration, spent: bool) -> Result<()> {
        match self.0 {
            Some(ack) => ack.nack(after, spent).await,
            None => Ok(()),
        }
    }
}
