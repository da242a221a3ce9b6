//! Headers of the user's own: which ones a transport can carry as they are, and
//! the one attribute that carries the others.

use std::collections::BTreeMap;

use serde_json::Value;

/// Names a broker or its client gives a meaning of its own, whatever the case.
const RESERVED: [&str; 46] = [
    "accept",
    "accept-encoding",
    "age",
    "authorization",
    "baggage",
    "bcc",
    "cc",
    "connection",
    "content-encoding",
    "content-length",
    "content-location",
    "content-type",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "from",
    "headers",
    "host",
    "idempotency-key",
    "keep-alive",
    "max-forwards",
    "message-id",
    "oncebox-attempts",
    "oncebox-undecodable",
    "origin",
    "pragma",
    "priority",
    "range",
    "referer",
    "retry-after",
    "server",
    "set-cookie",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-death",
    "x-delivery-count",
];
/// Families of such names.
const RESERVED_PREFIXES: [&str; 15] = [
    "access-control-",
    "ce-",
    "ce_",
    "cloudevents:",
    "cloudevents_",
    "if-",
    "nats-",
    "proxy-",
    "sec-",
    "webhook-",
    "x-acquired-",
    "x-first-death-",
    "x-forwarded-",
    "x-last-death-",
    "x-opt-",
];

/// Whether a header can be a line of text under its own name: the name is a
/// lower-case token that means nothing to a transport, the value is visible
/// ASCII that nobody would trim.
#[must_use]
pub fn plain(name: &str, value: &str) -> bool {
    let is_token = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "!#$&'*+-.^_`|~".contains(c);
    !name.is_empty() && name.chars().all(is_token) && is_free(name) && !value.is_empty() && is_line(value)
}

/// Whether a name means nothing to any transport.
pub(super) fn is_free(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    RESERVED.binary_search(&name.as_str()).is_err()
        && !RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a text survives as the value of a header line.
pub(super) fn is_line(value: &str) -> bool {
    value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && value.trim() == value
}

/// Headers as one JSON object. CloudEvents allows no object as the value of an
/// attribute, so it travels as text.
pub(super) fn to_text<'h>(headers: impl IntoIterator<Item = (&'h String, &'h String)>) -> String {
    let object = headers.into_iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
    Value::Object(object.collect()).to_string()
}

/// Adds what the attribute `headers` carries. A foreign event may use that name
/// for anything; what is no JSON object is a header of that name.
pub(super) fn merge(headers: &mut BTreeMap<String, String>, text: String) {
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => {
            headers.extend(object.into_iter().map(|(name, value)| (name, super::structured::text_of(value))));
        }
        _ => drop(headers.entry("headers".into()).or_insert(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserved_names_can_be_searched() {
        assert!(RESERVED.is_sorted());
        assert!(RESERVED.iter().chain(&RESERVED_PREFIXES).all(|name| *name == name.to_ascii_lowercase()));
    }

    #[test]
    fn a_header_is_plain_if_a_line_of_text_can_hold_it() {
        for (name, value) in [("x-tenant", "a b"), ("a", "~"), ("oncebox-signature", "v1;kid=a;mac=00")] {
            assert!(plain(name, value), "{name}: {value}");
        }
        for (name, value) in [
            ("", "v"),
            ("X-Tenant", "v"),
            ("a b", "v"),
            ("a:b", "v"),
            ("a\r\nb", "v"),
            ("ü", "v"),
            ("a", ""),
            ("a", " v"),
            ("a", "v "),
            ("a", "v\r\nb: c"),
            ("a", "ü"),
            ("a", "\u{7f}"),
            ("a", "\t"),
            ("content-type", "v"),
            ("host", "v"),
            ("nats-msg-id", "v"),
            ("ce-id", "v"),
            ("cookie", "v"),
            ("x-death", "v"),
            ("cc", "v"),
            ("traceparent", "v"),
            ("x-forwarded-for", "v"),
        ] {
            assert!(!plain(name, value), "{name:?}: {value:?}");
        }
    }
}
