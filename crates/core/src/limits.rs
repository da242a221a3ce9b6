//! Bounds on what an envelope may carry, checked at put.
//!
//! An envelope that passes here fits every column, key and wire field behind
//! it, so nothing downstream has to truncate, and a refusal reaches the caller
//! inside the transaction that still can be changed.

use crate::envelope::Envelope;
use crate::error::{Error, Kind, Result};

/// The longest id, key, name or trace field, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// No route may raise its payload limit above this.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;
/// The longest URI, trace state or baggage, in bytes.
const MAX_TEXT_BYTES: usize = 8 << 10;

/// What one outbox or route accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest payload in bytes; 1 MiB unless raised, never above [`MAX_PAYLOAD_BYTES`].
    pub payload_bytes: usize,
    /// The most headers one message may have.
    pub headers: usize,
    /// The longest header value in bytes.
    pub header_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload_bytes: 1 << 20, headers: 64, header_bytes: 4 << 10 }
    }
}

impl Limits {
    pub(crate) fn check(&self, envelope: &Envelope) -> Result<()> {
        required("id", &envelope.id)?;
        required("source", &envelope.source)?;
        required("type", &envelope.kind)?;
        required("destination", &envelope.destination)?;
        named("tenant", &envelope.tenant)?;
        named("content type", &envelope.content_type)?;
        for (field, value) in [
            ("key", &envelope.key),
            ("subject", &envelope.subject),
            ("aggregate type", &envelope.aggregate_type),
            ("correlation id", &envelope.correlation_id),
            ("causation id", &envelope.causation_id),
            ("idempotency key", &envelope.idempotency_key),
            ("traceparent", &envelope.traceparent),
        ] {
            value.as_deref().map_or(Ok(()), |text| required(field, text))?;
        }
        for (field, value) in [
            ("data schema", &envelope.data_schema),
            ("tracestate", &envelope.tracestate),
            ("baggage", &envelope.baggage),
        ] {
            value.as_deref().map_or(Ok(()), |text| bounded(field, text, MAX_TEXT_BYTES))?;
        }
        self.check_headers(envelope)?;
        let limit = self.payload_bytes.min(MAX_PAYLOAD_BYTES);
        if envelope.payload.len() > limit {
            return Err(too_long("payload", envelope.payload.len(), limit));
        }
        Ok(())
    }

    fn check_headers(&self, envelope: &Envelope) -> Result<()> {
        if envelope.headers.len() > self.headers {
            return Err(Error::new(
                Kind::Invalid,
                format!("the message has {} headers, the limit is {}", envelope.headers.len(), self.headers),
            ));
        }
        for (name, value) in &envelope.headers {
            required("header name", name)?;
            bounded("header value", value, self.header_bytes)?;
        }
        Ok(())
    }
}

fn required(field: &'static str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(Error::new(Kind::Invalid, format!("the {field} is empty")));
    }
    named(field, text)
}

fn named(field: &'static str, text: &str) -> Result<()> {
    bounded(field, text, MAX_NAME_BYTES)
}

fn bounded(field: &'static str, text: &str, limit: usize) -> Result<()> {
    if text.len() > limit {
        return Err(too_long(field, text.len(), limit));
    }
    // PostgreSQL text cannot hold U+0000, and a NUL inside a name is never meant.
    if text.contains('\0') {
        return Err(Error::new(Kind::Invalid, format!("the {field} contains a NUL character")));
    }
    Ok(())
}

fn too_long(field: &'static str, bytes: usize, limit: usize) -> Error {
    Error::new(Kind::Invalid, format!("the {field} has {bytes} bytes, the limit is {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope() -> Envelope {
        Envelope {
            id: "1".into(),
            source: "s".into(),
            kind: "t".into(),
            destination: "d".into(),
            ..Envelope::default()
        }
    }

    #[test]
    fn the_error_names_the_field_and_the_limit() {
        type Spoil = fn(&mut Envelope);
        let cases: [(Spoil, &str); 6] = [
            (|e| e.id = String::new(), "the id is empty"),
            (|e| e.id = "x".repeat(256), "the id has 256 bytes, the limit is 255"),
            (|e| e.key = Some("a\0b".into()), "the key contains a NUL character"),
            (|e| e.payload = vec![0; (1 << 20) + 1], "the payload has 1048577 bytes, the limit is 1048576"),
            (
                |e| e.headers = (0..65).map(|n| (n.to_string(), String::new())).collect(),
                "the message has 65 headers, the limit is 64",
            ),
            (
                |e| drop(e.headers.insert("h".into(), "v".repeat(4097))),
                "the header value has 4097 bytes, the limit is 4096",
            ),
        ];

        for (spoil, text) in cases {
            let mut envelope = envelope();
            spoil(&mut envelope);
            let error = envelope.check(&Limits::default()).err().map(|e| e.to_string());
            assert_eq!(error.as_deref(), Some(text));
        }
        assert!(envelope().check(&Limits::default()).is_ok());
    }
}
