//! A message on its way into the outbox, with everything that can be said about it.

use std::time::Duration;

use oncebox_core::{Envelope, Mailbox, Result, Store, Timestamp, Transaction};

use super::Outbox;

/// A message that is not put yet.
#[derive(Debug)]
#[must_use = "a draft does nothing until it is put"]
pub struct Draft<'o, S: Store> {
    outbox: &'o Outbox<S>,
    envelope: Envelope,
    delay: Option<Duration>,
    is_addressed: bool,
}

macro_rules! text_setters {
    ($($(#[$doc:meta])* $name:ident => $field:ident),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(mut self, value: impl Into<String>) -> Self {
            self.envelope.$field = Some(value.into());
            self
        })*
    };
}

impl<'o, S: Mailbox> Draft<'o, S> {
    pub(super) const fn new(outbox: &'o Outbox<S>, envelope: Envelope) -> Self {
        Self { outbox, envelope, delay: None, is_addressed: false }
    }

    text_setters! {
        /// The ordering key.
        key => key,
        /// What the message is about.
        subject => subject,
        /// The kind of thing it is about.
        aggregate_type => aggregate_type,
        /// Where the payload's schema is described.
        data_schema => data_schema,
        /// Ties together all messages of one business operation.
        correlation_id => correlation_id,
        /// What caused it.
        causation_id => causation_id,
        /// The caller's own key, passed on.
        idempotency_key => idempotency_key,
        /// W3C trace context.
        traceparent => traceparent,
        /// W3C trace state.
        tracestate => tracestate,
        /// W3C baggage.
        baggage => baggage,
    }

    /// An id of the caller's own, so that a retried business operation puts
    /// the message once.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.envelope.id = id.into();
        self
    }

    /// The tenant it belongs to.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.envelope.tenant = tenant.into();
        self
    }

    /// Where it goes, whatever the routes say.
    pub fn destination(mut self, destination: impl Into<String>) -> Self {
        self.envelope.destination = destination.into();
        self.is_addressed = true;
        self
    }

    /// A header of the user's own.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.envelope.headers.insert(name.into(), value.into());
        self
    }

    /// Not before this time, by the database's clock.
    pub const fn due(mut self, at: Timestamp) -> Self {
        self.envelope.due = Some(at);
        self
    }

    /// Not before this long after the put, by the database's clock.
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// The envelope so far.
    #[must_use]
    pub const fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Puts it and answers with its id.
    ///
    /// # Errors
    /// As [`Outbox::put`]; [`Kind::Conflict`](oncebox_core::Kind::Conflict) if the id is already in the outbox.
    pub async fn put(self, tx: &mut impl Transaction<S>) -> Result<String> {
        self.put_on(tx.connection()).await
    }

    /// Puts it on a bare connection; see [`Outbox::put_on`].
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_on(mut self, connection: &mut S::Tx) -> Result<String> {
        if let Some(delay) = self.delay {
            let now = match self.outbox.clock.now() {
                Some(now) => now,
                None => self.outbox.store.clock(connection).await?,
            };
            self.envelope.due = Some(now.plus(delay));
        }
        let id = self.envelope.id.clone();
        let batch = vec![self.envelope];
        if self.is_addressed {
            self.outbox.put_envelopes(connection, batch).await?;
        } else {
            self.outbox.put_routed(connection, batch).await?;
        }
        Ok(id)
    }
}
