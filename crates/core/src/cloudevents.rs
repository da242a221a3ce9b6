//! CloudEvents 1.0, structured mode: an envelope as one JSON object.
//!
//! Attributes CloudEvents does not name travel as extensions, whose names may
//! only have lower-case letters and digits.

use serde_json::{Map, Value};

use crate::envelope::Envelope;

/// The envelope as a CloudEvents JSON object. A JSON payload is embedded as
/// `data`, anything else as `data_base64`.
#[must_use]
pub fn to_json(envelope: &Envelope) -> Value {
    let mut event = Map::new();
    let mut text = |name: &str, value: Option<&str>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            event.insert(name.into(), value.into());
        }
    };
    text("specversion", Some("1.0"));
    text("id", Some(&envelope.id));
    text("source", Some(&envelope.source));
    text("type", Some(&envelope.kind));
    text("subject", envelope.subject.as_deref());
    text("time", envelope.time.map(|time| time.to_string()).as_deref());
    text("datacontenttype", Some(&envelope.content_type));
    text("dataschema", envelope.data_schema.as_deref());
    text("tenant", Some(&envelope.tenant));
    text("partitionkey", envelope.key.as_deref());
    text("destination", Some(&envelope.destination));
    text("aggregatetype", envelope.aggregate_type.as_deref());
    text("correlationid", envelope.correlation_id.as_deref());
    text("causationid", envelope.causation_id.as_deref());
    text("idempotencykey", envelope.idempotency_key.as_deref());
    text("traceparent", envelope.traceparent.as_deref());
    text("tracestate", envelope.tracestate.as_deref());
    text("baggage", envelope.baggage.as_deref());
    event.insert("schemaversion".into(), envelope.schema_version.into());
    if !envelope.headers.is_empty() {
        let headers = envelope.headers.iter().map(|(k, v)| (k.clone(), v.clone().into()));
        event.insert("headers".into(), Value::Object(headers.collect()));
    }
    let (name, data) = data(envelope);
    event.insert(name.into(), data);
    Value::Object(event)
}

fn data(envelope: &Envelope) -> (&'static str, Value) {
    let media = envelope.content_type.split(';').next().unwrap_or_default().trim();
    let is_json = media.is_empty() || media == "application/json" || media.ends_with("+json");
    match serde_json::from_slice(&envelope.payload) {
        Ok(value) if is_json => ("data", value),
        _ => ("data_base64", base64(&envelope.payload).into()),
    }
}

#[expect(clippy::indexing_slicing, reason = "the index is six bits wide, the table has 64 entries")]
fn base64(bytes: &[u8]) -> String {
    const TABLE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let six = (word >> (18 - 6 * place)) & 63;
            text.push(if place <= chunk.len() { char::from(TABLE[six as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_rfc_4648_says() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];

        for (plain, coded) in cases {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn a_payload_that_only_claims_to_be_json_travels_as_bytes() {
        let json = Envelope {
            payload: b"{\"a\":1}".to_vec(),
            content_type: "application/json".into(),
            ..Envelope::default()
        };
        let broken = Envelope { payload: b"{".to_vec(), ..json.clone() };

        assert_eq!(to_json(&json).pointer("/data/a"), Some(&Value::from(1)));
        assert_eq!(to_json(&broken).get("data_base64"), Some(&Value::from("ew==")));
    }
}
