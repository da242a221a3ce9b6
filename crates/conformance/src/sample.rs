//! Messages and times that cases are made of.

use std::borrow::Cow;
use std::collections::BTreeMap;

use oncebox_core::log::{SHARDS, Shard};
use oncebox_core::{Envelope, Message, Timestamp};
use serde::{Deserialize, Serialize};

/// All shards, as a relay alone holds them.
pub const ALL_SHARDS: [Shard; SHARDS as usize] = [0, 1, 2, 3, 4, 5, 6, 7];
/// The source of sample messages.
pub const SOURCE: &str = "conformance";
/// Where they go.
pub const DESTINATION: &str = "bookings";

/// `seconds` after an arbitrary start, as statements take it: cases own time.
#[must_use]
pub const fn at(seconds: i64) -> Option<Timestamp> {
    Some(moment(seconds))
}

/// `seconds` after the same start.
#[must_use]
pub const fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
}

/// A message without a key.
#[must_use]
pub fn plain(id: impl Into<String>) -> Envelope {
    let id = id.into();
    Envelope {
        payload: format!("body of {id}").into_bytes(),
        id,
        source: SOURCE.into(),
        kind: "conformance.sample".into(),
        schema_version: 1,
        destination: DESTINATION.into(),
        content_type: "text/plain".into(),
        ..Envelope::default()
    }
}

/// A message with a key.
#[must_use]
pub fn keyed(id: impl Into<String>, key: &str) -> Envelope {
    Envelope { key: Some(key.into()), ..plain(id) }
}

/// A message that waits until `seconds`.
#[must_use]
pub fn due(id: impl Into<String>, seconds: i64) -> Envelope {
    Envelope { due: at(seconds), ..plain(id) }
}

/// A message with something in every field that is hard to keep.
#[must_use]
pub fn full(id: impl Into<String>) -> Envelope {
    let text = |name: &str| Some(format!("{name} 'quoted' \"twice\" \\ ünï→\u{1F680}\n\ttab"));
    Envelope {
        schema_version: 7,
        tenant: "tenant ß".into(),
        key: text("key"),
        subject: text("subject"),
        aggregate_type: text("aggregate"),
        content_type: "application/x-thing; charset=\"utf-8\"".into(),
        data_schema: text("schema"),
        correlation_id: text("correlation"),
        causation_id: text("causation"),
        idempotency_key: text("idempotency"),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        tracestate: text("state"),
        baggage: text("baggage"),
        headers: BTreeMap::from([
            ("quote\"'\\".into(), "va\"l'u\\e".into()),
            ("ünï".into(), "\u{1F680}\u{7f}\n".into()),
            ("empty".into(), String::new()),
            ("number".into(), "1".into()),
            ("null".into(), "null".into()),
            ("object".into(), "{\"a\":[1]}".into()),
        ]),
        payload: (0..=255).collect(),
        ..plain(id)
    }
}

/// What the path suite sends: an amount booked on a key, in a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    /// The account; messages of one account keep their order.
    pub account: Option<String>,
    /// The place in that order.
    pub sequence: i64,
    /// What is booked.
    pub amount: i64,
}

impl Posted {
    /// A booking on an account.
    #[must_use]
    pub fn on(account: &str, sequence: i64) -> Self {
        Self { account: Some(account.into()), sequence, amount: sequence + 100 }
    }

    /// A booking on no account.
    #[must_use]
    pub const fn unkeyed(sequence: i64) -> Self {
        Self { account: None, sequence, amount: sequence + 100 }
    }
}

impl Message for Posted {
    const NAME: &'static str = "conformance.posted.v1";
    const DESTINATION: Option<&'static str> = Some(DESTINATION);

    fn key(&self) -> Option<Cow<'_, str>> {
        self.account.as_deref().map(Cow::Borrowed)
    }
}

/// What a handler of [`Posted`] may put on: the next link of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echoed(pub Posted);

impl Message for Echoed {
    const NAME: &'static str = "conformance.echoed.v1";
    const DESTINATION: Option<&'static str> = Some("echoes");

    fn key(&self) -> Option<Cow<'_, str>> {
        self.0.key()
    }
}
