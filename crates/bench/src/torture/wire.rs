//! What travels between the children and the broker: one JSON object per line.

use oncebox_core::{Envelope, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

/// From a child to the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Store this; answered by [`Answer::Confirm`].
    Publish(Parcel),
    /// Start delivering to this connection.
    Subscribe,
    Ack(u64),
    Nack {
        tag: u64,
        after_ms: u64,
        spent: bool,
    },
}

/// From the broker to a child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Confirm,
    Deliver { tag: u64, attempt: u32, parcel: Parcel },
}

/// The fields of an envelope that this system uses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    id: String,
    source: String,
    kind: String,
    pub(super) key: String,
    destination: String,
    time: i64,
    payload: String,
}

impl Parcel {
    pub(super) fn of(envelope: &Envelope) -> Self {
        Self {
            id: envelope.id.clone(),
            source: envelope.source.clone(),
            kind: envelope.kind.clone(),
            key: envelope.key.clone().unwrap_or_default(),
            destination: envelope.destination.clone(),
            time: envelope.time.map_or(0, Timestamp::micros),
            payload: String::from_utf8_lossy(&envelope.payload).into_owned(),
        }
    }

    pub(super) fn envelope(self) -> Envelope {
        Envelope {
            id: self.id,
            source: self.source,
            kind: self.kind,
            schema_version: 1,
            key: Some(self.key),
            destination: self.destination,
            content_type: "application/json".into(),
            time: Some(Timestamp::from_micros(self.time)),
            payload: self.payload.into_bytes(),
            ..Envelope::default()
        }
    }
}

/// One object as a line.
pub(super) fn line(object: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(object).expect("frames are valid JSON");
    text.push(b'\n');
    text
}

/// Writes one object.
pub(super) async fn send(
    writer: &mut (impl AsyncWrite + Unpin),
    object: &impl Serialize,
) -> std::io::Result<()> {
    writer.write_all(&line(object)).await
}

/// Reads one object; `None` at the end, or if the other side died within a line.
pub(super) async fn receive<T: for<'d> Deserialize<'d>>(
    reader: &mut (impl AsyncBufRead + Unpin),
) -> std::io::Result<Option<T>> {
    let mut text = Vec::new();
    reader.read_until(b'\n', &mut text).await?;
    if text.last() != Some(&b'\n') {
        return Ok(None);
    }
    serde_json::from_slice(&text).map(Some).map_err(std::io::Error::other)
}
