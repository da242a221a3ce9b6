//! The protocol broken on purpose, in wrappers around the product: if the
//! ledger does not notice, the ledger is worth nothing.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use oncebox_core::{Acknowledge, Delivery, Envelope, Failure, Feed, Publisher, Result};

use super::remote::{Receiver, Sender};

/// What to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sabotage {
    /// The publisher says "confirmed" and sends afterwards.
    SettleBeforeConfirm,
    /// The worker acknowledges first and handles afterwards.
    AckBeforeCommit,
    /// The worker knows only from memory what it has handled.
    DedupInMemory,
}

impl Sabotage {
    /// Its name on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::SettleBeforeConfirm => "settle-before-confirm",
            Self::AckBeforeCommit => "ack-before-commit",
            Self::DedupInMemory => "dedup-in-memory",
        }
    }
}

/// A publisher, honest or not.
pub(super) struct MaybeHasty {
    pub(super) publisher: Arc<Sender>,
    pub(super) hasty: bool,
}

impl Publisher for MaybeHasty {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        if !self.hasty {
            return self.publisher.publish(batch).await;
        }
        let (publisher, later) = (Arc::clone(&self.publisher), batch.to_vec());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            publisher.publish(&later).await
        });
        vec![Ok(()); batch.len()]
    }
}

/// A feed, honest or not.
pub(super) struct MaybeEager {
    pub(super) feed: Receiver,
    pub(super) eager: bool,
}

impl Feed for MaybeEager {
    type Ack = MaybeAck<<Receiver as Feed>::Ack>;

    async fn next(&mut self) -> Result<Option<Delivery<Self::Ack>>> {
        let Some(Delivery { envelope, attempt, ack }) = self.feed.next().await? else { return Ok(None) };
        let ack = if self.eager {
            ack.ack().await?;
            MaybeAck(None)
        } else {
            MaybeAck(Some(ack))
        };
        Ok(Some(Delivery { envelope, attempt, ack }))
    }
}

/// An answer, if it was not given already.
pub(super) struct MaybeAck<A>(Option<A>);

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
