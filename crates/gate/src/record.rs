//! What is kept of a reply, and how it is given again.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::response::Parts;
use http::{Response, StatusCode};
use oncebox_core::gate::{Fields, Reply};

use crate::answer::{CONFLICT, Problem, REPLAYED, STATUS, STORE};
use crate::body::{self, GateBody};
use crate::policy::Policy;
use crate::telemetry;

/// Never kept: what is meant for one connection, one user agent or one moment.
pub(crate) const FORGOTTEN: [&str; 20] = [
    "age",
    "alt-svc",
    "authentication-info",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "server-timing",
    "set-cookie",
    "te",
    "trailer",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
    "x-request-id",
];

fn is_forgotten(name: &HeaderName, named: &[&str], policy: &Policy) -> bool {
    let ours = [REPLAYED, STATUS, CONFLICT, STORE];
    FORGOTTEN.contains(&name.as_str())
        // Which origin may read a reply depends on who asks now.
        || name.as_str().starts_with("access-control-")
        || ours.contains(name)
        || *name == policy.replay_header
        || named.iter().any(|forgotten| name.as_str().eq_ignore_ascii_case(forgotten))
}

/// Which fields are kept where bodies are not: where the result is, and how a call of gRPC went.
fn outline(headers: &HeaderMap, is_grpc: bool) -> Fields {
    let kept: &[&str] = if is_grpc { &["content-type", "grpc-status", "location"] } else { &["location"] };
    let fields = kept.iter().filter_map(|name| Some((*name, headers.get(*name)?.as_bytes())));
    fields.collect()
}

fn kept(headers: &HeaderMap, policy: &Policy) -> Fields {
    let mut named = Vec::new();
    for value in headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok()) {
        named.extend(value.split(',').map(str::trim));
    }
    let texts = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    let mut fields = Fields::with_capacity(headers.len(), texts.sum());
    for (name, value) in headers.iter().filter(|(name, _)| !is_forgotten(name, &named, policy)) {
        fields.push(name.as_str(), value.as_bytes());
    }
    fields
}

/// What is kept of a whole response; without `body` it was too large.
pub(crate) fn reply(
    parts: &Parts,
    body: Option<&Bytes>,
    trailers: Option<&HeaderMap>,
    policy: &Policy,
) -> Reply {
    let is_grpc = is_grpc(&parts.headers);
    let fields = |all: &HeaderMap| if policy.keep_bodies { kept(all, policy) } else { outline(all, is_grpc) };
    let trailers = trailers.filter(|_| policy.keep_bodies || is_grpc);
    Reply {
        status: parts.status.as_u16(),
        headers: fields(&parts.headers),
        // Of no body all can be kept.
        body: body.filter(|body| policy.keep_bodies || body.is_empty()).map(|body| body.to_vec()),
        trailers: trailers.map(fields).unwrap_or_default(),
    }
}

/// These fields, and room for more.
fn map(fields: &Fields, more: usize) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(fields.len() + more);
    for (name, value) in fields.iter() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
            map.append(name, value);
        }
    }
    map
}

/// The reply once more.
pub(crate) fn replay(reply: &Reply, policy: &Policy) -> Response<GateBody> {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    let Some(body) = &reply.body else {
        let location = reply.headers.iter().find(|(name, _)| *name == LOCATION.as_str());
        let location = location.map(|(_, value)| value.to_vec());
        return Problem::NotRetained { status: reply.status, location }.answer(policy);
    };
    let trailers = Some(map(&reply.trailers, 0)).filter(|trailers| !trailers.is_empty());
    let mut response = Response::new(body::whole(Bytes::copy_from_slice(body), trailers));
    *response.status_mut() = policy.replay_status.filter(|_| status.is_success()).unwrap_or(status);
    let headers = response.headers_mut();
    // Two of ours, and what a server adds.
    *headers = map(&reply.headers, 4);
    headers.insert(policy.replay_header.clone(), HeaderValue::from_static("true"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    telemetry::replayed();
    response
}

fn starts_with(headers: &HeaderMap, prefix: &str) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let beginning = kind.trim_ascii_start().get(..prefix.len());
    beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(prefix.as_bytes()))
}

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    starts_with(headers, "application/grpc") && !is_grpc_web(headers)
}

/// It says how a call went somewhere in its body.
fn is_grpc_web(headers: &HeaderMap) -> bool {
    starts_with(headers, "application/grpc-web")
}

/// A reply that has no end, is none, or does not tell how it went: nothing that could be given again.
pub(crate) fn is_endless(parts: &Parts) -> bool {
    let headers = &parts.headers;
    parts.status.is_informational() || starts_with(headers, "text/event-stream") || is_grpc_web(headers)
}

/// Whether a reply is kept. gRPC says how it went in `grpc-status`, after the
/// body or, without one, in the headers; its HTTP status is always 200.
pub(crate) fn is_kept(parts: &Parts, trailers: Option<&HeaderMap>, policy: &Policy) -> bool {
    /// OK, invalid argument, not found, already exists, failed precondition, out of range, unimplemented.
    const FINAL: [&[u8]; 7] = [b"0", b"3", b"5", b"6", b"9", b"11", b"12"];
    match parts.headers.get(STORE).map(HeaderValue::as_bytes) {
        Some(b"yes") => return true,
        Some(b"no") => return false,
        _ => {}
    }
    if !is_grpc(&parts.headers) {
        return policy.store.keeps(parts.status);
    }
    let status = parts.headers.get("grpc-status").or_else(|| trailers.and_then(|all| all.get("grpc-status")));
    status.is_some_and(|status| FINAL.contains(&status.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(status: u16, headers: &[(&str, &str)]) -> Parts {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap().into_parts().0
    }

    #[test]
    fn what_is_meant_for_one_connection_or_user_is_not_kept() {
        let parts = parts(
            201,
            &[
                ("location", "/orders/1"),
                ("set-cookie", "session=1"),
                ("date", "today"),
                ("link", "</a>"),
                ("connection", "close, X-Private"),
                ("x-private", "1"),
                ("transfer-encoding", "chunked"),
                ("access-control-allow-origin", "https://a"),
                ("idempotent-replayed", "true"),
                ("x-hit", "true"),
                ("link", "</b>"),
            ],
        );
        let policy = Policy { replay_header: HeaderName::from_static("x-hit"), ..Policy::default() };
        let trailers =
            HeaderMap::from_iter([(policy.replay_header.clone(), HeaderValue::from_static("true"))]);

        let reply = reply(&parts, Some(&Bytes::new()), Some(&trailers), &policy);

        assert_eq!(
            reply.headers,
            Fields::from_iter([("location", &b"/orders/1"[..]), ("link", b"</a>"), ("link", b"</b>")])
        );
        assert_eq!(reply.trailers, Fields::default());
    }

    #[test]
    fn where_bodies_are_not_kept_only_status_and_place_are() {
        let policy = Policy { keep_bodies: false, ..Policy::default() };
        let parts = parts(201, &[("location", "/orders/1"), ("etag", "1"), ("content-type", "text/plain")]);
        let trailers = HeaderMap::from_iter(
            ["x-sum", "location"].map(|name| (HeaderName::from_static(name), HeaderValue::from_static("1"))),
        );
        let place = Fields::from_iter([("location", &b"/orders/1"[..])]);

        for (body, kept) in [(Some("secret"), None), (None, None), (Some(""), Some(Vec::new()))] {
            let body = body.map(Bytes::from);
            let reply = reply(&parts, body.as_ref(), Some(&trailers), &policy);

            let expected = Reply { status: 201, headers: place.clone(), body: kept, ..Reply::default() };
            assert_eq!(reply, expected, "{body:?}");
        }
    }

    /// Its status is among its headers or its trailers, and would be lost with them.
    #[test]
    fn of_a_call_of_grpc_its_own_status_is_kept_too() {
        let policy = Policy { keep_bodies: false, ..Policy::default() };
        let grpc = |fields: &[_]| {
            parts(200, &[&[("content-type", "application/grpc"), ("x-run", "1")], fields].concat())
        };
        let trailers = HeaderMap::from_iter(
            [("grpc-status", "5"), ("grpc-message", "no such patient")]
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))),
        );
        let at_once = grpc(&[("grpc-status", "5"), ("grpc-message", "no such patient")]);
        let kind = ("content-type", &b"application/grpc"[..]);

        let at_once = reply(&at_once, Some(&Bytes::new()), None, &policy);
        let at_its_end = reply(&grpc(&[]), Some(&Bytes::new()), Some(&trailers), &policy);

        assert_eq!(at_once.headers, Fields::from_iter([kind, ("grpc-status", b"5")]));
        assert_eq!(at_its_end.headers, Fields::from_iter([kind]));
        assert_eq!(at_its_end.trailers, Fields::from_iter([("grpc-status", &b"5"[..])]));
    }

    #[test]
    fn grpc_is_judged_by_its_own_status() {
        let policy = Policy::default();
        let grpc = parts(200, &[("content-type", "application/grpc+proto")]);
        let trailers = |status: &'static str| {
            HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static(status))])
        };

        assert!(is_kept(&grpc, Some(&trailers("0")), &policy));
        assert!(is_kept(&grpc, Some(&trailers("5")), &policy));
        assert!(!is_kept(&grpc, Some(&trailers("14")), &policy));
        assert!(!is_kept(&grpc, None, &policy), "cut off");
        let only = parts(200, &[("content-type", "application/grpc"), ("grpc-status", "3")]);
        assert!(is_kept(&only, None, &policy));
    }

    #[test]
    fn a_handler_has_the_last_word() {
        let policy = Policy::default();
        assert!(is_kept(&parts(503, &[("idempotency-store", "yes")]), None, &policy));
        assert!(!is_kept(&parts(201, &[("idempotency-store", "no")]), None, &policy));
    }
}
