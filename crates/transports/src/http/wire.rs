//! An envelope as a request.

use std::time::{Duration, SystemTime};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request};
use oncebox_core::cloudevents::{Mode, Parts, encode_for_text_headers, percent_encode};
use oncebox_core::{Envelope, Failure, Result};

use super::options::Place;
use super::webhook::WebhookKeys;

const AGENT: &str = concat!("oncebox/", env!("CARGO_PKG_VERSION"));

/// How messages become requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form<'o> {
    pub(super) mode: Mode,
    pub(super) keys: Option<&'o WebhookKeys>,
    /// The sender's clock, which receivers compare with theirs.
    pub(super) now: SystemTime,
}

/// The request that posts `envelope` to `place`.
///
/// # Errors
/// The message's fault: something in it cannot be a line of a request.
pub(super) fn request(
    envelope: &Envelope,
    place: &Place,
    form: Form<'_>,
) -> Result<Request<Full<Bytes>>, Failure> {
    let Parts { content_type, attributes, headers, body } = encode_for_text_headers(envelope, form.mode);
    let mut request = Request::new(Full::default());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = place.target.uri().clone();
    let lines = request.headers_mut();
    for (name, value) in &headers {
        insert(lines, name, value)?;
    }
    for (name, value) in &attributes {
        insert(lines, &format!("ce-{name}"), &percent_encode(value))?;
    }
    if !content_type.is_empty() {
        insert(lines, CONTENT_TYPE.as_str(), &content_type)?;
    }
    let trace = [
        ("traceparent", &envelope.traceparent),
        ("tracestate", &envelope.tracestate),
        ("baggage", &envelope.baggage),
    ];
    for (name, value) in trace {
        // As an attribute it travels whatever it is; as a line it serves the receiver's own tracing.
        if let Some(value) = value.as_deref().filter(|value| is_line(value)) {
            insert(lines, name, value)?;
        }
    }
    let id = line_of(&envelope.id);
    insert(lines, "idempotency-key", &quoted(&id))?;
    if let Some(keys) = form.keys {
        let seconds = form.now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        insert(lines, "webhook-id", &id)?;
        insert(lines, "webhook-timestamp", &seconds.to_string())?;
        insert(lines, "webhook-signature", &keys.sign(&id, seconds, &body))?;
    }
    lines.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    lines.extend(place.headers.clone());
    *request.body_mut() = Full::new(Bytes::from(body));
    Ok(request)
}

fn insert(lines: &mut HeaderMap, name: &str, value: &str) -> Result<(), Failure> {
    let (Ok(header), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) else {
        return Err(Failure::message(format!("{name:?} cannot be a header of a request")).permanently());
    };
    lines.insert(header, value);
    Ok(())
}

/// Whether a text is the same text behind a header's name.
fn is_line(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.trim() == text
}

/// An id as a line. What is encoded never looks like another id that is not.
fn line_of(id: &str) -> String {
    if is_line(id) && !id.contains('%') { id.to_owned() } else { percent_encode(id) }
}

/// A string of RFC 9651, as the draft of the header `Idempotency-Key` wants it.
fn quoted(line: &str) -> String {
    format!("\"{}\"", line.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use oncebox_conformance::sample::full;

    use super::super::options::HttpOptions;
    use super::*;

    fn posted(envelope: &Envelope, mode: Mode) -> Result<Request<Full<Bytes>>, Failure> {
        let directory = HttpOptions::new().destination("orders", "https://a.test/x?y=1").directory().unwrap();
        request(
            envelope,
            &directory.find("orders").unwrap(),
            Form { mode, keys: None, now: SystemTime::UNIX_EPOCH },
        )
    }

    fn line<'r>(request: &'r Request<Full<Bytes>>, name: &str) -> Option<&'r str> {
        request.headers().get(name).and_then(|value| value.to_str().ok())
    }

    #[test]
    fn a_binary_event_has_its_attributes_as_percent_encoded_headers() {
        let envelope = Envelope { subject: Some("Straße 1".into()), id: "7".into(), ..full("7") };

        let request = posted(&envelope, Mode::Binary).unwrap();

        assert_eq!(request.uri(), "https://a.test/x?y=1");
        assert_eq!(line(&request, "ce-specversion"), Some("1.0"));
        assert_eq!(line(&request, "ce-subject"), Some("Stra%C3%9Fe%201"));
        assert_eq!(line(&request, "content-type"), Some("application/x-thing; charset=\"utf-8\""));
        assert_eq!(line(&request, "traceparent"), envelope.traceparent.as_deref());
        assert_eq!(line(&request, "idempotency-key"), Some("\"7\""));
        assert!(line(&request, "webhook-signature").is_none());
    }

    #[test]
    fn a_structured_event_has_no_attributes_as_headers() {
        let request = posted(&full("7"), Mode::Structured).unwrap();

        assert_eq!(line(&request, "content-type"), Some("application/cloudevents+json; charset=utf-8"));
        assert!(request.headers().keys().all(|name| !name.as_str().starts_with("ce-")));
        assert_eq!(line(&request, "idempotency-key"), Some("\"7\""));
    }

    #[test]
    fn an_id_is_a_string_of_ascii_and_no_two_ids_become_one() {
        for (id, key) in [
            ("0198-ab", "\"0198-ab\""),
            ("a \"b\" \\c", "\"a \\\"b\\\" \\\\c\""),
            ("é", "\"%C3%A9\""),
            ("%C3%A9", "\"%25C3%25A9\""),
            (" a", "\"%20a\""),
            ("a\r\nx: y", "\"a%0D%0Ax:%20y\""),
        ] {
            let request = posted(&Envelope { id: id.into(), ..Envelope::default() }, Mode::Binary).unwrap();
            assert_eq!(line(&request, "idempotency-key"), Some(key));
        }
    }
}
