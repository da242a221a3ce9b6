//! The envelope: what is stored in the outbox, travels and reaches a handler.
//!
//! It carries the CloudEvents 1.0 attributes and what oncebox needs beyond
//! them. The identity of a message is (tenant, source, id) and never changes
//! from put to effect.

use std::collections::BTreeMap;
use std::fmt;

use crate::digest::Digest;
use crate::message::Message;
use crate::timestamp::Timestamp;
use crate::{Limits, Result};

/// A message as it is stored and sent.
///
/// `Debug` prints sizes, never the payload or header values: envelopes end up
/// in logs, and what they carry must not.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Unique within (tenant, source); the same from put to effect.
    pub id: String,
    /// Who produced the message (CloudEvents `source`).
    pub source: String,
    /// The message's stable name (CloudEvents `type`).
    pub kind: String,
    /// The version of the payload's schema.
    pub schema_version: u32,
    /// The tenant the message belongs to; empty if there is only one.
    pub tenant: String,
    /// Messages with equal (tenant, key) keep their order.
    pub key: Option<String>,
    /// Where the message goes: a topic, a queue, a subject.
    pub destination: String,
    /// What the message is about (CloudEvents `subject`), usually the aggregate's id.
    pub subject: Option<String>,
    /// The kind of aggregate the message is about.
    pub aggregate_type: Option<String>,
    /// The media type of the payload (CloudEvents `datacontenttype`).
    pub content_type: String,
    /// Where the payload's schema is described (CloudEvents `dataschema`).
    pub data_schema: Option<String>,
    /// Ties together all messages of one business operation.
    pub correlation_id: Option<String>,
    /// The id of the message or request that caused this one.
    pub causation_id: Option<String>,
    /// The caller's own idempotency key, passed on.
    pub idempotency_key: Option<String>,
    /// W3C trace context, captured at put.
    pub traceparent: Option<String>,
    /// W3C trace state, captured at put.
    pub tracestate: Option<String>,
    /// W3C baggage, captured at put.
    pub baggage: Option<String>,
    /// When the message entered the log (CloudEvents `time`); the database fills it in.
    pub time: Option<Timestamp>,
    /// Not before this time; `None` means at once.
    pub due: Option<Timestamp>,
    /// Headers of the user's own.
    pub headers: BTreeMap<String, String>,
    /// The message itself. oncebox never looks inside.
    pub payload: Vec<u8>,
}

impl Envelope {
    /// The envelope of a typed message, with an id of the caller's choice.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) if the message cannot be encoded.
    pub fn of<M: Message>(id: impl Into<String>, message: &M) -> Result<Self> {
        Ok(Self {
            id: id.into(),
            source: String::new(),
            kind: M::NAME.to_owned(),
            schema_version: M::VERSION,
            key: message.key().map(Into::into),
            destination: M::DESTINATION.unwrap_or(M::NAME).to_owned(),
            content_type: M::CONTENT_TYPE.to_owned(),
            payload: message.encode()?,
            ..Self::default()
        })
    }

    /// Checks the envelope against `limits`.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid), naming the limit and the field.
    pub fn check(&self, limits: &Limits) -> Result<()> {
        limits.check(self)
    }

    /// The digest by which two bodies under one id are compared.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.payload)
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("kind", &self.kind)
            .field("tenant", &self.tenant)
            .field("key", &self.key.is_some())
            .field("destination", &self.destination)
            .field("headers", &self.headers.len())
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_payload_and_no_header_value() {
        let envelope = Envelope {
            payload: b"hunter2".to_vec(),
            headers: BTreeMap::from([("token".into(), "hunter2".into())]),
            key: Some("hunter2".into()),
            ..Envelope::default()
        };

        assert!(!format!("{envelope:?}").contains("hunter2"));
    }
}
