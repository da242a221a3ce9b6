//! Envelope to NATS message and back, by the CloudEvents binding for NATS:
//! attributes are headers that begin with `ce-` and are percent-encoded.

use std::str::FromStr;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use oncebox_core::cloudevents::{self, Mode, Parts, percent_decode, percent_encode};
use oncebox_core::{Digest, Envelope, Failure, Keyring, Result, signature};

const CONTENT_TYPE: &str = "content-type";
const ATTRIBUTE_PREFIX: &str = "ce-";
/// What the server puts into headers for its own ends.
const SERVER_PREFIX: &str = "nats-";
/// The header that tells why a message could not be taken apart.
pub(super) const UNDECODABLE: &str = "oncebox-undecodable";

/// A message as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outbound {
    pub(super) subject: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// What the server recognises a duplicate by.
    pub(super) id: String,
}

/// What a message is made of besides its envelope.
pub(super) struct Writer<'a> {
    pub(super) prefix: &'a str,
    pub(super) mode: Mode,
    pub(super) keyring: Option<&'a Keyring>,
}

impl Writer<'_> {
    /// # Errors
    /// [`Class::Message`](oncebox_core::transport::Class::Message), permanent: it cannot be sent.
    pub(super) fn write(&self, envelope: &Envelope) -> Result<Outbound, Failure> {
        let subject = subject(self.prefix, &envelope.destination)
            .map_err(|reason| Failure::message(reason).permanently())?;
        let parts = cloudevents::encode_for_text_headers(envelope, self.mode);
        let mut headers = HeaderMap::new();
        if !parts.content_type.is_empty() {
            put(&mut headers, CONTENT_TYPE, &parts.content_type)?;
        }
        for (name, value) in parts.attributes {
            match attribute(&name) {
                // What is percent-encoded has nothing in it that a header refuses.
                Some(name) => headers.insert(name, HeaderValue::from(encoded(value))),
                None => put(&mut headers, &format!("{ATTRIBUTE_PREFIX}{name}"), &encoded(value))?,
            }
        }
        for (name, value) in &parts.headers {
            put(&mut headers, name, value)?;
        }
        let id = message_id(&subject, envelope, self.keyring);
        headers.insert(NATS_MESSAGE_ID, id.as_str());
        Ok(Outbound { subject, headers, body: parts.body, id })
    }
}

impl Outbound {
    /// The same message under an id that no earlier one can have taken.
    pub(super) fn renamed(mut self, id: String) -> Self {
        self.headers.insert(NATS_MESSAGE_ID, id.as_str());
        self.id = id;
        self
    }

    /// What a stored message is to this one, to whoever reads it: the mode of
    /// either makes no difference.
    pub(super) fn compare(&self, subject: &str, headers: &HeaderMap, body: &[u8]) -> Likeness {
        let mut own = read("", &self.subject, Some(&self.headers), &self.body);
        let mut stored = read("", subject, Some(headers), body);
        let is_signed_alike =
            own.headers.remove(signature::HEADER) == stored.headers.remove(signature::HEADER);
        match self.subject == subject && own == stored {
            true if is_signed_alike => Likeness::Same,
            true => Likeness::SignedOtherwise,
            false => Likeness::Other,
        }
    }
}

/// What one message is to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Likeness {
    Same,
    /// The same but for the signature: sent before the key was changed, or
    /// written by somebody who cannot sign.
    SignedOtherwise,
    Other,
}

fn is_servers(name: &str) -> bool {
    name.get(..SERVER_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(SERVER_PREFIX))
}

/// The header of an attribute that messages usually have, at no cost: this runs
/// a dozen times for every message.
fn attribute(name: &str) -> Option<HeaderName> {
    macro_rules! known {
        ($($name:literal)*) => {
            match name {
                $($name => Some(const { HeaderName::from_static(concat!("ce-", $name)) }),)*
                _ => None,
            }
        };
    }
    known! {
        "specversion" "id" "source" "type" "subject" "dataschema" "tenant" "partitionkey" "destination"
        "aggregatetype" "correlationid" "causationid" "idempotencykey" "traceparent" "tracestate" "baggage"
        "time" "schemaversion" "headers" "datacontenttype"
    }
}

/// The value of an attribute as it travels; most are the same.
fn encoded(value: String) -> String {
    let is_plain = |byte: u8| matches!(byte, b'!'..=b'~') && !matches!(byte, b'"' | b'%');
    if value.bytes().all(is_plain) { value } else { percent_encode(&value) }
}

fn put(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), Failure> {
    // `insert` with text panics on what does not parse.
    let parsed = HeaderName::from_str(name).ok().zip(HeaderValue::from_str(value).ok());
    let Some((name, value)) = parsed else {
        return Err(Failure::message(format!("the header {name:?} cannot be sent over NATS")).permanently());
    };
    // Neither attributes nor headers come twice.
    headers.insert(name, value);
    Ok(())
}

/// The id by which the server recognises a message sent twice. Its dedup looks
/// at nothing but this id, so the id covers everything that tells messages
/// apart: the subject, the identity and the body. With a keyring it is not to
/// be guessed: whoever took it in advance would make the server drop the message.
fn message_id(subject: &str, envelope: &Envelope, keyring: Option<&Keyring>) -> String {
    let body = envelope.digest();
    let fields: [&[u8]; 5] = [
        subject.as_bytes(),
        envelope.tenant.as_bytes(),
        envelope.source.as_bytes(),
        envelope.id.as_bytes(),
        body.as_bytes(),
    ];
    let length = fields.iter().map(|field| size_of::<u64>() + field.len()).sum();
    let mut canonical = Vec::with_capacity(length);
    for field in fields {
        canonical.extend((field.len() as u64).to_be_bytes());
        canonical.extend(field);
    }
    let Some(keyring) = keyring else { return hexadecimal(Digest::of(&canonical)) };
    // A source nobody signs messages under: the signature that travels in the
    // message's headers must not give this id away.
    let sealed = Envelope { source: "oncebox:nats-msg-id".into(), payload: canonical, ..Envelope::default() };
    hexadecimal(Digest::of(keyring.sign(&sealed).as_bytes()))
}

/// As a digest prints itself, without the formatter, which takes longer than the digest.
fn hexadecimal(digest: Digest) -> String {
    let digits = digest.as_bytes().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// The subject of a destination.
///
/// # Errors
/// Why it is none.
pub(super) fn subject(prefix: &str, destination: &str) -> Result<String, String> {
    let subject = match prefix {
        "" => destination.to_owned(),
        prefix => format!("{prefix}.{destination}"),
    };
    let problem = if subject.split('.').any(str::is_empty) {
        "a token is empty"
    } else if subject.chars().any(|c| c.is_whitespace() || c.is_control()) {
        "it contains white space or a control character"
    } else if subject.contains(['*', '>']) {
        "it contains a wildcard"
    } else if subject.starts_with('$') || subject.starts_with("_INBOX.") {
        // A destination must not be able to call the server's own interface.
        "it belongs to the server"
    } else {
        return Ok(subject);
    };
    Err(format!("{subject:?} is no subject to publish to: {problem}"))
}

/// Puts an envelope together. What claims to be an event and is none is handed
/// on bare, without an id and with the reason in a header: the inbox buries it.
pub(super) fn read(prefix: &str, subject: &str, headers: Option<&HeaderMap>, body: &[u8]) -> Envelope {
    let mut parts = Parts { body: body.to_vec(), ..Parts::default() };
    for (name, values) in headers.map(HeaderMap::iter).into_iter().flatten() {
        let (name, Some(value)) = (AsRef::<str>::as_ref(name), values.last()) else { continue };
        let attribute = name.get(..ATTRIBUTE_PREFIX.len()).zip(name.get(ATTRIBUTE_PREFIX.len()..));
        if name.eq_ignore_ascii_case(CONTENT_TYPE) {
            parts.content_type = value.as_str().to_owned();
        } else if let Some((_, name)) =
            attribute.filter(|(start, _)| start.eq_ignore_ascii_case(ATTRIBUTE_PREFIX))
        {
            parts.attributes.push((name.to_ascii_lowercase(), percent_decode(value.as_str())));
        } else if !is_servers(name) {
            parts.headers.push((name.to_owned(), value.as_str().to_owned()));
        }
    }
    let mut envelope = cloudevents::decode(parts.clone()).unwrap_or_else(|error| {
        let mut bare = cloudevents::bare(Parts { attributes: Vec::new(), ..parts });
        bare.headers.insert(UNDECODABLE.into(), error.chain());
        bare
    });
    if envelope.destination.is_empty() {
        let rest = subject.strip_prefix(prefix).unwrap_or(subject);
        envelope.destination = rest.strip_prefix('.').unwrap_or(rest).to_owned();
    }
    envelope
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn envelope() -> Envelope {
        Envelope {
            id: "1".into(),
            source: "shop".into(),
            kind: "order.placed".into(),
            destination: "orders.eu".into(),
            content_type: "application/json".into(),
            payload: b"{}".to_vec(),
            headers: BTreeMap::from([
                ("x-plain".into(), "v".into()),
                ("Nats-Msg-Id".into(), "mine".into()),
                ("ünï".into(), "\u{1F680}\n".into()),
            ]),
            ..Envelope::default()
        }
    }

    fn writer(mode: Mode) -> Writer<'static> {
        Writer { prefix: "prod", mode, keyring: None }
    }

    #[test]
    fn an_envelope_survives_both_modes() {
        for mode in [Mode::Binary, Mode::Structured] {
            let sent = writer(mode).write(&envelope()).unwrap();

            let read = read("prod", &sent.subject, Some(&sent.headers), &sent.body);

            assert_eq!(sent.subject, "prod.orders.eu");
            assert!(read == envelope(), "{mode:?}");
        }
    }

    #[test]
    fn attributes_are_encoded_as_the_binding_says() {
        let sent =
            writer(Mode::Binary).write(&Envelope { subject: Some("ü \"x\"".into()), ..envelope() }).unwrap();

        let header = |name: &str| sent.headers.get(name).map(|value| value.as_str().to_owned());
        assert_eq!(header("ce-subject").as_deref(), Some("%C3%BC%20%22x%22"));
        assert_eq!(header("ce-id").as_deref(), Some("1"));
        assert_eq!(header("content-type").as_deref(), Some("application/json"));
        assert_eq!(header("Nats-Msg-Id"), Some(sent.id.clone()), "a user's header does not replace it");
    }

    #[test]
    fn every_attribute_has_a_header_of_its_own() {
        let all = cloudevents::encode_for_text_headers(&envelope(), Mode::Binary).attributes;

        for (name, _) in all {
            let header = attribute(&name).unwrap_or_else(|| panic!("{name} is made anew for every message"));
            assert_eq!(header.to_string(), format!("{ATTRIBUTE_PREFIX}{name}"));
        }
        for value in ["", "plain", "a b", "\"", "%", "ü", "\r\n", "~!"] {
            assert_eq!(encoded(value.to_owned()), percent_encode(value));
        }
    }

    #[test]
    fn an_id_is_the_digest_as_it_prints_itself() {
        let digest = Digest::of(b"body");

        assert_eq!(hexadecimal(digest), digest.to_string());
    }

    #[test]
    fn the_id_tells_apart_whatever_the_dedup_must_not_mix_up() {
        let id = |envelope: &Envelope| writer(Mode::Binary).write(envelope).unwrap().id;
        let variants = [
            envelope(),
            Envelope { tenant: "t".into(), ..envelope() },
            Envelope { source: "sho".into(), id: "p1".into(), ..envelope() },
            Envelope { id: "2".into(), ..envelope() },
            Envelope { payload: b"{ }".to_vec(), ..envelope() },
            Envelope { destination: "orders.us".into(), ..envelope() },
        ];

        let ids: std::collections::BTreeSet<String> = variants.iter().map(id).collect();

        assert_eq!(ids.len(), variants.len());
        assert_eq!(id(&envelope()), id(&envelope()), "a message sent again has the same id");
    }

    #[test]
    fn with_a_keyring_the_id_is_the_secret_s() {
        let ring = |secret: &str| Keyring::new("k", secret).unwrap();
        let id = |ring: Option<&Keyring>| message_id("s", &envelope(), ring);
        let (one, two) = (ring("0123456789abcdef"), ring("fedcba9876543210"));

        assert_eq!(id(Some(&one)), id(Some(&one)));
        assert_ne!(id(Some(&one)), id(Some(&two)));
        assert_ne!(id(Some(&one)), id(None));
        let signature = one.sign(&envelope());
        assert_ne!(id(Some(&one)), Digest::of(signature.as_bytes()).to_string());
    }

    #[test]
    fn a_message_is_known_again_in_another_mode_and_under_another_key() {
        let signed = |by: &str| {
            let mut envelope = envelope();
            envelope.headers.insert(signature::HEADER.into(), by.into());
            envelope
        };
        let sent = |mode, envelope: &Envelope| writer(mode).write(envelope).unwrap();
        let own = sent(Mode::Binary, &signed("old"));
        let like = |stored: &Outbound| own.compare(&stored.subject, &stored.headers, &stored.body);

        assert_eq!(like(&own), Likeness::Same);
        assert_eq!(like(&sent(Mode::Structured, &signed("old"))), Likeness::Same);
        assert_eq!(like(&sent(Mode::Structured, &signed("new"))), Likeness::SignedOtherwise);
        assert_eq!(like(&sent(Mode::Binary, &envelope())), Likeness::SignedOtherwise);
        for other in [
            Envelope { kind: "order.changed".into(), ..signed("old") },
            Envelope { payload: b"{ }".to_vec(), ..signed("old") },
            Envelope { headers: BTreeMap::new(), ..signed("old") },
        ] {
            assert_eq!(like(&sent(Mode::Binary, &other)), Likeness::Other);
        }
        assert_eq!(own.compare("prod.orders.us", &own.headers, &own.body), Likeness::Other);
        assert_eq!(own.compare(&own.subject, &HeaderMap::new(), &own.body), Likeness::Other);
    }

    #[test]
    fn what_is_no_subject_says_why() {
        let cases = [
            ("", "a token is empty"),
            ("a..b", "a token is empty"),
            (".a", "a token is empty"),
            ("a.", "a token is empty"),
            ("a b", "white space"),
            ("a\r\nPUB b", "white space"),
            ("a.*", "wildcard"),
            ("a.>", "wildcard"),
            ("$JS.API.STREAM.DELETE.X", "belongs to the server"),
            ("_INBOX.x", "belongs to the server"),
        ];

        for (destination, reason) in cases {
            let problem = subject("", destination).unwrap_err();
            assert!(problem.contains(reason), "{problem}");
        }
        assert_eq!(subject("", "bestellungen.ü").as_deref(), Ok("bestellungen.ü"));
    }

    #[test]
    fn a_foreign_message_is_read_bare() {
        let mut headers = HeaderMap::new();
        headers.insert("X-Thing", "1");
        headers.insert("Nats-Pin-Id", "p");

        let read = read("prod", "prod.orders", Some(&headers), b"{\"a\":1}");

        assert_eq!((read.id.as_str(), read.destination.as_str()), ("", "orders"));
        assert_eq!(read.payload, b"{\"a\":1}");
        assert_eq!(read.headers, BTreeMap::from([("X-Thing".into(), "1".into())]));
    }

    #[test]
    fn what_only_claims_to_be_an_event_says_why_it_is_none() {
        let mut headers = HeaderMap::new();
        headers.insert("Content-Type", "application/cloudevents+json");

        let read = read("", "orders", Some(&headers), b"{");

        assert_eq!((read.id.as_str(), read.payload.as_slice()), ("", b"{".as_slice()));
        assert!(read.headers.contains_key(UNDECODABLE));
    }
}
