//! What makes two requests under one key the same request.

use std::borrow::Cow;
use std::fmt;

use super::excluded::Excluded;
use super::json;
use crate::digest::Digest;

/// Changed whenever the same request would get another fingerprint.
const VERSION: &[u8] = b"oncebox request 2";

/// A request, as far as it is compared.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method, in upper case.
    pub method: &'a str,
    /// The path, as it was sent.
    pub path: &'a str,
    /// What follows the question mark.
    pub query: Option<&'a str>,
    /// The `Content-Type`.
    pub content_type: Option<&'a str>,
    /// The whole body.
    pub body: &'a [u8],
}

/// What is left of a request to compare it by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(Digest);

impl Fingerprint {
    /// The fingerprint of a request whose JSON body may be written in another
    /// way, and may differ in what is `excluded`.
    #[must_use]
    pub fn of(request: &Request<'_>, excluded: &Excluded) -> Self {
        let canonical = if request.is_json() { json::canonical(request.body, excluded) } else { None };
        match canonical {
            Some(form) => Self::over(request, b"json", &form),
            None => Self::raw(request),
        }
    }

    /// The fingerprint of a request whose body is compared byte by byte.
    #[must_use]
    pub fn raw(request: &Request<'_>) -> Self {
        Self::over(request, b"raw", request.body)
    }

    fn over(request: &Request<'_>, kind: &[u8], body: &[u8]) -> Self {
        let (content_type, query) = (request.content_type.map(normal), request.query);
        let is_there = |part: Option<&str>| if part.is_some() { b"1" } else { b"0" };
        Self(Digest::of_parts(&[
            VERSION,
            request.method.as_bytes(),
            request.path.as_bytes(),
            is_there(query),
            query.unwrap_or_default().as_bytes(),
            content_type.as_deref().unwrap_or_default().as_bytes(),
            kind,
            body,
        ]))
    }

    /// One that was stored.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Digest::from_bytes(bytes))
    }

    /// As it is stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

/// The fingerprint of a body that can be guessed would tell whoever reads a
/// log that the guess was right.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint")
    }
}

impl Request<'_> {
    fn is_json(&self) -> bool {
        let essence = self.content_type.unwrap_or_default().split(';').next().unwrap_or_default();
        let essence = essence.trim().as_bytes();
        let suffix = essence.len().checked_sub(b"+json".len()).and_then(|start| essence.get(start..));
        essence.eq_ignore_ascii_case(b"application/json")
            || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case(b"+json"))
    }
}

/// A media type with its name in lower case; what its parameters say may depend on theirs.
fn normal(content_type: &str) -> Cow<'_, str> {
    match content_type.trim().split_once(';') {
        Some((essence, parameters)) => {
            format!("{};{}", essence.trim_end().to_ascii_lowercase(), parameters.trim()).into()
        }
        None if content_type.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            content_type.trim().to_ascii_lowercase().into()
        }
        None => content_type.trim().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Request<'static> = Request {
        method: "POST",
        path: "/orders",
        query: None,
        content_type: Some("application/json"),
        body: br#"{"item":1,"count":2}"#,
    };

    fn of(request: Request<'_>) -> Fingerprint {
        Fingerprint::of(&request, &Excluded::new(&["traceId".to_owned()]).unwrap())
    }

    #[test]
    fn a_retry_may_write_its_json_differently() {
        let again = Request { body: b"{ \"count\": 2,\n \"item\": 1, \"traceid\": 7 }", ..ORDER };

        assert_eq!(of(ORDER), of(again));
        assert_eq!(of(ORDER), of(Request { content_type: Some(" Application/JSON "), ..ORDER }));
        assert_ne!(Fingerprint::raw(&ORDER), Fingerprint::raw(&again));
    }

    #[test]
    fn another_request_has_another_fingerprint() {
        let others = [
            Request { method: "PATCH", ..ORDER },
            Request { path: "/orders/", ..ORDER },
            Request { query: Some(""), ..ORDER },
            Request { query: Some("a=1"), ..ORDER },
            Request { path: "/ordersa=1", ..ORDER },
            Request { content_type: Some("application/problem+json"), ..ORDER },
            Request { content_type: Some("text/plain"), ..ORDER },
            Request { content_type: None, ..ORDER },
            Request { body: br#"{"item":1,"count":2,"note":null}"#, ..ORDER },
            Request { body: br#"{"item":1,"count":2.0}"#, ..ORDER },
            Request { body: b"{}", ..ORDER },
            Request { body: b"", ..ORDER },
            Request { body: br#"{"item":1,"count":2,"count":2}"#, ..ORDER },
        ];
        let mut seen = std::collections::HashSet::from([of(ORDER)]);

        for other in others {
            assert!(seen.insert(of(other)), "{other:?}");
        }
    }

    /// Receipts that are kept must be found by later builds. Whoever changes these changes [`VERSION`], too.
    #[test]
    fn fingerprints_stay_as_they_are() {
        let hex = |print: Fingerprint| Digest::from_bytes(*print.as_bytes()).to_string();
        let nested = Request { body: br#"{"b":[1,{"d":2,"c":"\u00e9"}],"a":{},"traceId":1}"#, ..ORDER };

        assert_eq!(hex(of(ORDER)), "5ab375ae191df7db99882a27e9393e086203c58df2c3916c5eef59dd549980da");
        assert_eq!(hex(of(nested)), "8816ce7b9b1a9f99ed235023d239de5e90ac18e6982287326d3a7b6fb21a433c");
        assert_eq!(
            hex(Fingerprint::of(&nested, &Excluded::default())),
            "e02649fcccb4900fd96cf7963be57565a934b31eaddefd75cb0c6bfa8095381e"
        );
    }

    #[test]
    fn a_body_that_is_not_quite_json_is_compared_byte_by_byte() {
        for body in [&b"\xff\xfe"[..], b"{\"a\":1,\"a\":2}", b"{"] {
            let request = Request { body, ..ORDER };
            assert_eq!(of(request), Fingerprint::raw(&request));
        }
    }
}
