//! Structured mode: an event as one JSON object.
//!
//! A JSON payload is embedded byte for byte. Written anew it would have other
//! spaces, another digest and no valid signature.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Parts, attributes, base64, corrupt, headers};
use crate::envelope::Envelope;
use crate::error::{Error, Kind, Result};

/// The envelope as a CloudEvents JSON object without its payload, for stores
/// that keep that in a column of its own.
#[must_use]
pub fn to_attributes(envelope: &Envelope) -> Value {
    Value::Object(attributes_of(envelope))
}

/// The envelope again, from what [`to_attributes`] said of it and its payload.
///
/// # Errors
/// [`Kind::Corrupt`] if the text is not such an object.
pub fn from_attributes(attributes: &str, payload: Vec<u8>) -> Result<Envelope> {
    let event: Value = serde_json::from_str(attributes)
        .map_err(|error| Error::new(Kind::Corrupt, "a stored message is not JSON").because(error))?;
    Ok(Envelope { payload, ..from_json(&event)? })
}

/// The envelope as a CloudEvents JSON object. A JSON payload is embedded as
/// `data`, anything else as `data_base64`. The value is for looking at: only
/// [`encode`](super::encode) keeps a JSON payload's bytes.
#[must_use]
pub fn to_json(envelope: &Envelope) -> Value {
    let mut event = attributes_of(envelope);
    let (name, data) = match json_payload(envelope) {
        Some((value, _)) => ("data", value),
        None => ("data_base64", base64::encode(&envelope.payload).into()),
    };
    event.insert(name.into(), data);
    Value::Object(event)
}

/// The envelope of a CloudEvents JSON object.
///
/// # Errors
/// [`Kind::Corrupt`](crate::Kind::Corrupt) if it is none.
pub fn from_json(event: &Value) -> Result<Envelope> {
    let Value::Object(event) = event else { return Err(corrupt("the event is not a JSON object")) };
    let data = event.get("data").filter(|data| !data.is_null()).map(|data| Cow::Owned(data.to_string()));
    // The exact name counts if others differ from it in case only; it sorts last.
    let members: BTreeMap<&String, &Value> = event.iter().collect();
    assemble(members.into_iter().map(|(name, value)| (name.as_str(), Ok(value.clone()))), data)
}

/// The body of a structured event.
pub(super) fn encode(envelope: &Envelope) -> Vec<u8> {
    let mut event = attributes_of(envelope);
    let Some((_, payload)) = json_payload(envelope) else {
        event.insert("data_base64".into(), base64::encode(&envelope.payload).into());
        return Value::Object(event).to_string().into_bytes();
    };
    let mut text = Value::Object(event).to_string();
    // There is always a `specversion`, so the object is never empty.
    text.pop();
    text.push_str(",\"data\":");
    text.push_str(payload);
    text.push('}');
    text.into_bytes()
}

/// The envelope of a structured event.
pub(super) fn decode(parts: &Parts) -> Result<Envelope> {
    let media = media_type(&parts.content_type);
    if media != "application/cloudevents+json" && media != "application/cloudevents" {
        return Err(corrupt(format!("events as {media} are not supported")));
    }
    let event: BTreeMap<String, &RawValue> = serde_json::from_slice(&parts.body)
        .map_err(|error| corrupt("the event is not a JSON object").because(error))?;
    let data = event.get("data").map(|data| data.get()).filter(|data| *data != "null").map(Cow::Borrowed);
    let members = event.iter().filter(|(name, _)| *name != "data");
    let parsed = members.map(|(name, value)| (name.as_str(), serde_json::from_str(value.get())));
    let mut envelope = assemble(
        parsed.map(|(name, value)| {
            (name, value.map_err(|error| corrupt("an attribute is wrong").because(error)))
        }),
        data,
    )?;
    // What came along beside the event is not part of it, but nothing is thrown away.
    for (name, value) in &parts.headers {
        envelope.headers.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Ok(envelope)
}

/// Builds an envelope from the members of an event; `data` is JSON text.
fn assemble<'m>(
    members: impl Iterator<Item = (&'m str, Result<Value>)>,
    data: Option<Cow<'_, str>>,
) -> Result<Envelope> {
    let mut envelope = attributes::empty();
    let mut bytes = None;
    for (name, value) in members {
        match (name, value?) {
            ("data", _) | (_, Value::Null) => {}
            ("data_base64", Value::String(text)) => {
                bytes = Some(base64::decode(&text).ok_or_else(|| corrupt("data_base64 is not base64"))?);
            }
            ("data_base64", _) => return Err(corrupt("data_base64 is not a text")),
            (name, value) => attributes::assign(&mut envelope, name, text_of(value))?,
        }
    }
    envelope.payload = match (data, bytes) {
        (Some(_), Some(_)) => return Err(corrupt("the event has both data and data_base64")),
        (Some(data), None) => payload_of(data, &envelope.content_type),
        (None, bytes) => bytes.unwrap_or_default(),
    };
    Ok(envelope)
}

/// The payload that `data` stands for: a JSON text is itself, unless it is a
/// string that holds a payload of another media type.
fn payload_of(data: Cow<'_, str>, content_type: &str) -> Vec<u8> {
    if !is_json(content_type)
        && let Ok(text) = serde_json::from_str::<String>(&data)
    {
        return text.into_bytes();
    }
    data.into_owned().into_bytes()
}

/// An attribute's value as text, however the producer wrote it.
pub(super) fn text_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn attributes_of(envelope: &Envelope) -> Map<String, Value> {
    let mut event = Map::new();
    attributes::each(envelope, |name, value| {
        let value = match name {
            "schemaversion" => envelope.schema_version.into(),
            _ => value.into_owned().into(),
        };
        event.insert(name.into(), value);
    });
    if !envelope.content_type.is_empty() {
        event.insert("datacontenttype".into(), envelope.content_type.as_str().into());
    }
    if !envelope.headers.is_empty() {
        event.insert("headers".into(), headers::to_text(&envelope.headers).into());
    }
    event
}

/// The payload if it is JSON that can be embedded and taken out again unchanged.
fn json_payload(envelope: &Envelope) -> Option<(Value, &str)> {
    let text = std::str::from_utf8(&envelope.payload).ok().filter(|_| is_json(&envelope.content_type))?;
    let value: Value = serde_json::from_str(text).ok()?;
    let is_exact = text.trim_ascii() == text && !value.is_null();
    is_exact.then_some((value, text))
}

fn is_json(content_type: &str) -> bool {
    let media = media_type(content_type);
    media.is_empty() || media.ends_with("/json") || media.ends_with("+json")
}

fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}
