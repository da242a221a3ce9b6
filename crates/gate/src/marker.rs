//! The header that marks replays: what it may be called.
//!
//! The gate writes it on replays, keeps none of what a handler says by that name
//! and takes it away from requests. By a name that means something to somebody else that breaks
//! requests or replies, so such names are refused.

use http::header::HeaderName;

use crate::answer::{CONFLICT, STATUS, STORE};
use crate::arrival::KEY;
use crate::record;

/// What begins like this describes a body, a protocol or who may read a reply.
const TAKEN_BEGINNINGS: [&str; 8] =
    ["accept", "access-control-", "content-", "grpc-", "if-", "proxy-", "sec-", "x-forwarded-"];

/// Names that requests or replies need; those that are never kept are taken, too.
const TAKEN: [&str; 21] = [
    "allow",
    "authorization",
    "cache-control",
    "cookie",
    "etag",
    "expect",
    "expires",
    "forwarded",
    "host",
    "last-modified",
    "link",
    "location",
    "origin",
    "pragma",
    "range",
    "referer",
    "retry-after",
    "strict-transport-security",
    "user-agent",
    "vary",
    "x-correlation-id",
];

/// Whether replays can be marked by it.
pub(crate) fn is_free(name: &HeaderName) -> bool {
    let text = name.as_str();
    let is_taken = TAKEN.contains(&text)
        || record::FORGOTTEN.contains(&text)
        || TAKEN_BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
        || [KEY, STATUS, CONFLICT, STORE].contains(name);
    !is_taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> HeaderName {
        text.parse().unwrap()
    }

    #[test]
    fn names_that_mean_something_else_are_taken() {
        for text in [
            "Content-Length",
            "Content-Type",
            "Transfer-Encoding",
            "Connection",
            "Set-Cookie",
            "Location",
            "Retry-After",
            "Cache-Control",
            "Idempotency-Key",
            "Idempotency-Status",
            "Idempotency-Conflict",
            "Idempotency-Store",
            "Authorization",
            "Host",
            "grpc-status",
            "Access-Control-Allow-Origin",
        ] {
            assert!(!is_free(&named(text)), "{text}");
        }
    }

    #[test]
    fn names_that_gates_go_by_are_free() {
        for text in ["Idempotent-Replayed", "Idempotency-Replayed", "X-Idempotent-Replay", "X-Hit", "x-cache"]
        {
            assert!(is_free(&named(text)), "{text}");
        }
    }
}
