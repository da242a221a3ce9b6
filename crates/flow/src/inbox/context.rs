//! What a handler is given: the transaction, the message, and an outbox in the
//! same transaction.

use std::collections::BTreeMap;
use std::fmt;

use futures_util::future::BoxFuture;
use oncebox_core::store::Mailbox;
use oncebox_core::{Envelope, Message, Result};

use crate::chance;
use crate::outbox::Outbox;

/// One run of a handler. `Tx` is the driver's connection.
pub struct Context<'c, Tx> {
    tx: &'c mut Tx,
    envelope: &'c Envelope,
    attempt: u32,
    outgoing: &'c dyn Outgoing<Tx>,
    left: Left,
}

/// What a run leaves behind.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// The reply for duplicates.
    pub(super) reply: Option<Vec<u8>>,
    /// Whether it may have written anything.
    pub(super) has_written: bool,
}

impl<'c, Tx> Context<'c, Tx> {
    pub(super) fn new(
        tx: &'c mut Tx,
        envelope: &'c Envelope,
        attempt: u32,
        outgoing: &'c dyn Outgoing<Tx>,
    ) -> Self {
        Self { tx, envelope, attempt, outgoing, left: Left::default() }
    }

    /// The connection inside the transaction: what is written here commits
    /// with the marker or not at all.
    pub const fn tx(&mut self) -> &mut Tx {
        self.left.has_written = true;
        self.tx
    }

    /// How often this message was tried, this time included.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The message as it arrived.
    #[must_use]
    pub const fn envelope(&self) -> &'c Envelope {
        self.envelope
    }

    /// The producer's own headers.
    #[must_use]
    pub const fn headers(&self) -> &'c BTreeMap<String, String> {
        &self.envelope.headers
    }

    /// Puts a message into the same transaction. It inherits tenant,
    /// correlation and trace context and names this message as its cause.
    ///
    /// # Errors
    /// As [`Outbox::put`].
    pub async fn put<M: Message>(&mut self, message: &M) -> Result<String> {
        let mut envelope = Envelope::of(chance::message_id(), message)?;
        envelope.tenant.clone_from(&self.envelope.tenant);
        envelope.causation_id = Some(self.envelope.id.clone());
        envelope.correlation_id =
            self.envelope.correlation_id.clone().or_else(|| Some(self.envelope.id.clone()));
        envelope.traceparent.clone_from(&self.envelope.traceparent);
        envelope.tracestate.clone_from(&self.envelope.tracestate);
        envelope.baggage.clone_from(&self.envelope.baggage);
        let id = envelope.id.clone();
        self.left.has_written = true;
        self.outgoing.put(self.tx, envelope).await?;
        Ok(id)
    }

    /// Leaves a reply that duplicates of this message will get.
    pub fn reply(&mut self, result: impl Into<Vec<u8>>) {
        self.left.reply = Some(result.into());
    }

    pub(super) fn into_left(self) -> Left {
        self.left
    }
}

impl<Tx> fmt::Debug for Context<'_, Tx> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("envelope", self.envelope)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// An outbox whose store is forgotten, so that handlers name only their connection.
pub(super) trait Outgoing<Tx>: Send + Sync {
    fn put<'a>(&'a self, tx: &'a mut Tx, envelope: Envelope) -> BoxFuture<'a, Result<()>>;
}

impl<S: Mailbox> Outgoing<S::Tx> for Outbox<S> {
    fn put<'a>(&'a self, tx: &'a mut S::Tx, mut envelope: Envelope) -> BoxFuture<'a, Result<()>> {
        self.redirect(&mut envelope);
        Box::pin(async move { self.put_routed(tx, vec![envelope]).await.map(drop) })
    }
}
