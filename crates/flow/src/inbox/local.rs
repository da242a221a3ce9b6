//! The local route: the consumer is in the producer's own database, so what
//! the producer puts is stored for the consumer's handlers in the producer's
//! transaction. No relay, no broker, no hop.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use oncebox_core::depot::{Deposit, Deposited};
use oncebox_core::store::{Mailbox, Store};
use oncebox_core::{Depot, Envelope, Error, Kind, Once, Result};

use super::deposit::Share;
use super::handler::Mode;
use super::{Inbox, Inner};

/// An inbox that a producer of the same database can put into.
pub(crate) trait Local<S: Store>: Send + Sync {
    /// The destination whose messages it takes.
    fn destination(&self) -> &str;
    fn put<'a>(&'a self, tx: &'a mut S::Tx, envelopes: &'a [Envelope]) -> BoxFuture<'a, Result<Vec<Once>>>;
    /// Whether a put of this message is committed.
    fn holds<'a>(&'a self, envelope: &'a Envelope) -> BoxFuture<'a, Result<bool>>;
}

impl<S: Mailbox + Depot> Inbox<S> {
    /// This inbox as the place where an outbox of the same store puts what
    /// goes to its channel.
    pub(crate) fn local(&self) -> Result<Arc<dyn Local<S>>> {
        let inner = &self.inner;
        let is_durable = |handler: &Arc<_>| inner.mode_of(Arc::as_ref(handler)) == Mode::Durable;
        if inner.handlers.is_empty() || !inner.handlers.iter().all(is_durable) {
            return Err(Error::new(
                Kind::Config,
                format!(
                    "channel {} cannot be a local route: all of its handlers must be durable, \
                     because there is no transport to wait for the others",
                    inner.channel
                ),
            ));
        }
        Ok(Arc::clone(inner) as Arc<dyn Local<S>>)
    }
}

impl<S: Mailbox + Depot> Local<S> for Inner<S> {
    fn destination(&self) -> &str {
        &self.channel
    }

    fn put<'a>(&'a self, tx: &'a mut S::Tx, envelopes: &'a [Envelope]) -> BoxFuture<'a, Result<Vec<Once>>> {
        Box::pin(async move {
            let mut shares: Vec<Vec<Share>> = Vec::with_capacity(envelopes.len());
            for envelope in envelopes {
                shares.push(self.local_shares(envelope)?);
            }
            let deposits: Vec<Deposit<'_>> = envelopes
                .iter()
                .zip(&shares)
                .map(|(envelope, shares)| Deposit {
                    scope: &self.scope,
                    channel: &self.channel,
                    envelope,
                    assignments: shares.iter().map(Share::assignment).collect(),
                })
                .collect();
            let deposited = self.store.deposit(tx, &deposits, self.clock.now()).await?;
            // Before the commit: workers look again by themselves.
            self.stored.hint();
            let once = deposited.into_iter().map(|deposited| match deposited {
                Deposited::Stored { .. } => Once::First,
                Deposited::Duplicate | Deposited::Conflict => Once::Duplicate,
            });
            Ok(once.collect())
        })
    }

    fn holds<'a>(&'a self, envelope: &'a Envelope) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            // The unique index waits for a commit that is still under way.
            let mut begun = self.store.begin().await?;
            let put = Local::put(self, &mut begun, std::slice::from_ref(envelope)).await;
            self.store.rollback(begun).await.ok();
            Ok(put?.first() == Some(&Once::Duplicate))
        })
    }
}

impl<S: Mailbox + Depot> Inner<S> {
    fn local_shares(&self, envelope: &Envelope) -> Result<Vec<Share>> {
        if envelope.due.is_some() {
            let text = "a message with a due time cannot take a local route: send it through a relay";
            return Err(Error::new(Kind::Invalid, text));
        }
        let takers = self.handlers_of(envelope, Mode::Durable);
        let shares: Vec<Share> = takers.map(|handler| self.share(handler.as_ref(), envelope)).collect();
        if shares.is_empty() && !self.options.ignore_unknown {
            let text =
                format!("no handler of channel {} takes messages of type {}", self.channel, envelope.kind);
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(shares)
    }
}
