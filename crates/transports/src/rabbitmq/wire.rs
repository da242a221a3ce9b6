//! An envelope as an AMQP message, and back.
//!
//! In binary mode the CloudEvents attributes travel as headers named
//! `cloudEvents:NAME`, the payload as it is. What AMQP has a property for is
//! set there too, for readers who know nothing of CloudEvents, and taken from
//! there when a message carries no attributes at all.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use oncebox_core::cloudevents::{self, Parts};
use oncebox_core::{Envelope, Timestamp};

use super::options::RabbitMqOptions;

/// How often a message was tried, in messages that wait in a retry queue.
pub(super) const ATTEMPTS: &str = "oncebox-attempts";
/// Why a message could not be understood, in the envelope it was put in.
const UNDECODABLE: &str = "oncebox-undecodable";
const PREFIX: &str = "cloudEvents:";
/// The same where a colon is not allowed.
const OTHER_PREFIX: &str = "cloudEvents_";
const PERSISTENT: u8 = 2;
/// What the server writes into headers, and the relay's own.
const INTERNAL: [&str; 9] = [
    ATTEMPTS,
    "x-death",
    "x-delivery-count",
    "x-acquired-count",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
];

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Route {
    /// Empty for the default exchange, whose routing keys are names of queues.
    pub(super) exchange: ShortString,
    /// `None` if the destination leaves it to the message.
    pub(super) key: Option<ShortString>,
}

impl Route {
    /// `EXCHANGE`, `EXCHANGE/ROUTING.KEY` or `/QUEUE`; or just a routing key if
    /// all messages go to one exchange.
    pub(super) fn of(destination: &str, options: &RabbitMqOptions) -> Result<Self, String> {
        let (exchange, key) = match (&options.exchange, destination.split_once('/')) {
            (Some(exchange), _) => (&**exchange, Some(destination)),
            (None, Some((exchange, key))) => (exchange, Some(key)),
            (None, None) => (destination, None),
        };
        if exchange.is_empty() && key.is_none_or(str::is_empty) {
            return Err(format!("destination {destination:?} names neither an exchange nor a queue"));
        }
        Ok(Self { exchange: short(exchange)?, key: key.map(short).transpose()? })
    }

    /// The queue of a group. Messages of two routing keys never share one.
    pub(super) fn queue(&self, group: &str) -> Result<ShortString, String> {
        match (self.exchange.as_str(), &self.key) {
            ("", Some(queue)) => Ok(queue.clone()),
            (exchange, Some(key)) => short(&format!("{exchange}.{key}.{group}")),
            (exchange, None) => short(&format!("{exchange}.{group}")),
        }
    }
}

/// A message as the client sends it.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) exchange: ShortString,
    pub(super) key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Vec<u8>,
}

/// Writes an envelope. `frame_bytes` is the most a frame may have, and the
/// headers of a message must fit one: a server that gets more hangs up.
pub(super) fn encode(
    envelope: &Envelope,
    options: &RabbitMqOptions,
    frame_bytes: usize,
) -> Result<Frame, String> {
    let route = Route::of(&envelope.destination, options)?;
    let key = route.key.map_or_else(|| short(&envelope.kind), Ok)?;
    let Parts { content_type, attributes, headers, body } = cloudevents::encode(envelope, options.mode);
    let mut table = BTreeMap::new();
    for (name, value) in attributes {
        table.insert(short(&format!("{PREFIX}{name}"))?, text(value));
    }
    for (name, value) in headers {
        table.insert(short(&name)?, text(value));
    }
    // Properties are short strings, six at most.
    let bytes: usize = table.iter().map(|(name, value)| name.as_str().len() + value_bytes(value) + 6).sum();
    let limit = frame_bytes.saturating_sub(2_048);
    if bytes > limit {
        return Err(format!("the headers have {bytes} bytes, and the server takes {limit}"));
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type(short(&content_type)?)
        .with_message_id(short(&envelope.id)?)
        .with_type(short(&envelope.kind)?)
        .with_headers(FieldTable::from(table));
    if let Some(time) = envelope.time {
        properties = properties.with_timestamp(u64::try_from(time.micros() / 1_000_000).unwrap_or(0));
    }
    if let Some(id) = envelope.correlation_id.as_deref().and_then(|id| short(id).ok()) {
        properties = properties.with_correlation_id(id);
    }
    Ok(Frame { exchange: route.exchange, key, properties, body })
}

/// Reads a message, and how often it was tried before. What cannot be read
/// becomes an envelope without an id, so that the inbox keeps it as a dead letter.
pub(super) fn decode(properties: &BasicProperties, body: Vec<u8>, destination: &str) -> (Envelope, u32) {
    let (attributes, headers, attempts) = sort(properties.headers());
    let content_type = properties.content_type().as_ref().map(ToString::to_string).unwrap_or_default();
    let parts = Parts { content_type, attributes, headers, body };
    let whole = parts.clone();
    let mut envelope = cloudevents::decode(parts).unwrap_or_else(|error| Envelope {
        content_type: whole.content_type,
        headers: whole.headers.into_iter().chain([(UNDECODABLE.to_owned(), error.chain())]).collect(),
        payload: whole.body,
        ..Envelope::default()
    });
    let is_bare = envelope.id.is_empty() && !envelope.headers.contains_key(UNDECODABLE);
    if is_bare {
        take_properties(&mut envelope, properties);
    }
    if envelope.destination.is_empty() {
        destination.clone_into(&mut envelope.destination);
    }
    (envelope, attempts)
}

/// For a producer who knows AMQP only.
fn take_properties(envelope: &mut Envelope, properties: &BasicProperties) {
    let filled = |field: &mut String, property: &Option<ShortString>| {
        if let (true, Some(value)) = (field.is_empty(), property) {
            value.as_str().clone_into(field);
        }
    };
    filled(&mut envelope.id, properties.message_id());
    filled(&mut envelope.kind, properties.kind());
    filled(&mut envelope.source, properties.app_id());
    if envelope.correlation_id.is_none() {
        envelope.correlation_id = properties.correlation_id().as_ref().map(ToString::to_string);
    }
    if envelope.time.is_none() {
        let seconds = properties.timestamp().and_then(|seconds| i64::try_from(seconds).ok());
        envelope.time = seconds.map(|seconds| Timestamp::from_micros(seconds.saturating_mul(1_000_000)));
    }
}

type Pairs = Vec<(String, String)>;

/// Attributes, headers of the user's own, and how often it was tried.
fn sort(table: &Option<FieldTable>) -> (Pairs, Pairs, u32) {
    let (mut attributes, mut headers, mut attempts) = (Vec::new(), Vec::new(), 0);
    for (name, value) in table.iter().flat_map(|table| table.inner()) {
        let name = name.as_str();
        if name == ATTEMPTS {
            attempts = spoken(value).parse().unwrap_or(0);
        } else if let Some(attribute) = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(OTHER_PREFIX))
        {
            attributes.push((attribute.to_owned(), spoken(value)));
        } else if !INTERNAL.contains(&name) {
            headers.push((name.to_owned(), spoken(value)));
        }
    }
    (attributes, headers, attempts)
}

/// The properties of a message that is to be tried again, `attempts` being
/// those it has behind it. Its expiration would end it early, and the server
/// refuses a user it does not know the connection by.
pub(super) fn retried(properties: &BasicProperties, attempts: u32) -> BasicProperties {
    let kept = properties.headers().iter().flat_map(|table| table.inner());
    let mut table: BTreeMap<ShortString, AMQPValue> = kept
        .filter(|(name, _)| !INTERNAL.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    table.insert(ATTEMPTS.into(), AMQPValue::LongLongInt(i64::from(attempts)));
    let mut again =
        BasicProperties::default().with_delivery_mode(PERSISTENT).with_headers(FieldTable::from(table));
    type Set = fn(BasicProperties, ShortString) -> BasicProperties;
    let texts: [(&Option<ShortString>, Set); 7] = [
        (properties.content_type(), BasicProperties::with_content_type),
        (properties.content_encoding(), BasicProperties::with_content_encoding),
        (properties.correlation_id(), BasicProperties::with_correlation_id),
        (properties.reply_to(), BasicProperties::with_reply_to),
        (properties.message_id(), BasicProperties::with_message_id),
        (properties.kind(), BasicProperties::with_type),
        (properties.app_id(), BasicProperties::with_app_id),
    ];
    for (value, set) in texts {
        if let Some(value) = value {
            again = set(again, value.clone());
        }
    }
    if let Some(timestamp) = properties.timestamp() {
        again = again.with_timestamp(*timestamp);
    }
    if let Some(priority) = properties.priority() {
        again = again.with_priority(*priority);
    }
    again
}

fn text(value: String) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value.into_bytes()))
}

fn value_bytes(value: &AMQPValue) -> usize {
    if let AMQPValue::LongString(text) = value { text.len() } else { 8 }
}

/// A header's value as text, whatever its producer made of it.
fn spoken(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::Timestamp(value) => value.to_string(),
        AMQPValue::Void => String::new(),
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

/// The client panics where a name is longer than the protocol's.
pub(super) fn short(name: &str) -> Result<ShortString, String> {
    ShortString::try_new(name).map_err(|_too_long| {
        let start: String = name.chars().take(32).collect();
        format!("{start}… has {} bytes, and AMQP takes 255", name.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> RabbitMqOptions {
        RabbitMqOptions::from_url("amqp://localhost").unwrap()
    }

    fn envelope() -> Envelope {
        Envelope {
            id: "1".into(),
            source: "shop".into(),
            kind: "order.placed".into(),
            destination: "orders".into(),
            content_type: "application/json".into(),
            key: Some("k".into()),
            headers: BTreeMap::from([("ünï".to_owned(), "\u{1F680}".to_owned())]),
            payload: b"{}".to_vec(),
            ..Envelope::default()
        }
    }

    #[test]
    fn a_destination_names_an_exchange_a_key_or_a_queue() {
        let of =
            |destination: &str| Route::of(destination, &options()).map(|r| (r.exchange.to_string(), r.key));
        let key = |key: &str| Some(ShortString::from(key));

        assert_eq!(of("orders"), Ok(("orders".into(), None)));
        assert_eq!(of("orders/eu.new"), Ok(("orders".into(), key("eu.new"))));
        assert_eq!(of("/jobs"), Ok((String::new(), key("jobs"))));
        assert!(of("").is_err() && of("/").is_err() && of(&"x".repeat(256)).is_err());
        let one = Route::of("a/b", &options().exchange("all")).unwrap();
        assert_eq!((one.exchange.as_str(), one.key), ("all", key("a/b")));
    }

    #[test]
    fn queues_of_different_routes_have_different_names() {
        let of = |destination: &str| {
            Route::of(destination, &options()).unwrap().queue("billing").unwrap().to_string()
        };

        assert_eq!(of("orders"), "orders.billing");
        assert_eq!(of("orders/eu.#"), "orders.eu.#.billing");
        assert_eq!(of("/jobs"), "jobs");
    }

    #[test]
    fn an_envelope_survives_both_modes() {
        for mode in [cloudevents::Mode::Binary, cloudevents::Mode::Structured] {
            let frame = encode(&envelope(), &options().mode(mode), 131_072).unwrap();
            assert_eq!((frame.exchange.as_str(), frame.key.as_str()), ("orders", "order.placed"));
            assert_eq!(*frame.properties.delivery_mode(), Some(PERSISTENT));

            let (read, attempts) = decode(&frame.properties, frame.body, "elsewhere");

            assert!(read == envelope(), "{mode:?}");
            assert_eq!(attempts, 0);
        }
    }

    #[test]
    fn headers_that_would_make_the_server_hang_up_are_refused_here() {
        let headers = (0..64).map(|n| (n.to_string(), "v".repeat(4096))).collect();

        assert!(encode(&Envelope { headers, ..envelope() }, &options(), 131_072).is_err());
    }

    #[test]
    fn a_message_of_somebody_elses_is_read_by_its_properties() {
        let headers = FieldTable::from(BTreeMap::from([
            (ShortString::from("retries"), AMQPValue::LongInt(3)),
            (ShortString::from("x-delivery-count"), AMQPValue::LongLongInt(7)),
        ]));
        let properties = BasicProperties::default()
            .with_message_id("42".into())
            .with_type("order.placed".into())
            .with_app_id("legacy".into())
            .with_timestamp(1_700_000_000)
            .with_headers(headers);

        let (read, attempts) = decode(&properties, b"{}".to_vec(), "orders");

        assert_eq!(
            (&*read.id, &*read.kind, &*read.source, &*read.destination),
            ("42", "order.placed", "legacy", "orders")
        );
        assert_eq!(read.time, Some(Timestamp::from_micros(1_700_000_000_000_000)));
        assert_eq!(read.headers, BTreeMap::from([("retries".to_owned(), "3".to_owned())]));
        assert_eq!(attempts, 0);
    }

    #[test]
    fn what_cannot_be_read_is_kept_without_an_id() {
        let properties = BasicProperties::default()
            .with_message_id("42".into())
            .with_content_type("application/cloudevents+json".into());

        let (read, _) = decode(&properties, b"{broken".to_vec(), "orders");

        assert_eq!((&*read.id, &*read.payload), ("", &b"{broken"[..]));
        assert!(read.headers.contains_key(UNDECODABLE));
    }

    #[test]
    fn a_retried_message_counts_its_attempts_and_forgets_the_servers_notes() {
        let frame = encode(&envelope(), &options(), 131_072).unwrap();
        let once = retried(&frame.properties.with_expiration("1".into()).with_user_id("eve".into()), 1);
        let twice = retried(&once, 2);

        let (read, attempts) = decode(&twice, frame.body, "orders");

        assert!(read == envelope());
        assert_eq!(attempts, 2);
        assert_eq!((twice.expiration(), twice.user_id()), (&None, &None));
    }
}
