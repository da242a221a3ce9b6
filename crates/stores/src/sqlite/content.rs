//! What is kept of a message beside its payload, and what tells it from others.

use oncebox_core::digest::bounded_key;
use oncebox_core::handler::MessageKey;
use oncebox_core::{Digest, Envelope, Error, Kind, Result, cloudevents};
use serde_json::Value;

/// What makes a message the same message.
#[derive(Debug)]
pub(super) struct Identity<'a> {
    pub(super) scope: &'a str,
    pub(super) channel: &'a str,
    pub(super) tenant: &'a str,
    pub(super) key: MessageKey,
}

impl<'a> Identity<'a> {
    /// A message without an id is told from others by its digest.
    pub(super) fn of(scope: &'a str, channel: &'a str, envelope: &'a Envelope, digest: Digest) -> Self {
        let id = match envelope.id.as_str() {
            "" => format!("digest:{digest}"),
            id => bounded_key(id),
        };
        let key = MessageKey { source: bounded_key(&envelope.source), id };
        Self { scope, channel, tenant: &envelope.tenant, key }
    }
}

/// The message as a CloudEvent without its payload, which has a column of its own.
pub(super) fn attributes(envelope: &Envelope) -> String {
    // Without a payload there is none to be parsed in vain.
    let shell = Envelope { payload: Vec::new(), ..envelope.clone() };
    let mut event = cloudevents::to_json(&shell);
    if let Some(event) = event.as_object_mut() {
        event.remove("data");
        event.remove("data_base64");
    }
    event.to_string()
}

/// The message again.
pub(super) fn envelope(attributes: &str, payload: Vec<u8>) -> Result<Envelope> {
    let event: Value = serde_json::from_str(attributes)
        .map_err(|error| Error::new(Kind::Corrupt, "a stored message is not JSON").because(error))?;
    Ok(Envelope { payload, ..cloudevents::from_json(&event)? })
}

#[cfg(test)]
mod tests {
    use oncebox_core::Timestamp;

    use super::*;

    #[test]
    fn a_stored_message_comes_back_as_it_was() {
        let mut whole = Envelope {
            id: "a\0b".into(),
            source: "s".into(),
            kind: "k".into(),
            schema_version: 7,
            tenant: "t".into(),
            key: Some("key".into()),
            destination: "d".into(),
            content_type: "application/json".into(),
            time: Some(Timestamp::from_micros(1_700_000_000_123_456)),
            payload: b" {\"x\" : 1} ".to_vec(),
            ..Envelope::default()
        };
        whole.headers.insert("id\0".into(), "\"v\"\n".into());

        let text = attributes(&whole);

        assert!(!text.contains("\"data\"") && !text.contains("data_base64"), "{text}");
        assert_eq!(envelope(&text, whole.payload.clone()).unwrap(), whole);
        assert_eq!(envelope("[", Vec::new()).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn a_message_without_an_id_is_known_by_its_body() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let bare = Envelope::default();
        let identity = |digest| Identity::of("", "", &bare, digest).key.id;

        assert_eq!(identity(a), format!("digest:{a}"));
        assert_ne!(identity(a), identity(b));
    }
}
