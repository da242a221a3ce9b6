//! The service behind the proxy.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
    UPGRADE,
};
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{Request, Response, StatusCode, Uri, Version};
use axum::response::IntoResponse as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use oncebox_core::gate::path::has_dots;
use oncebox_gate::{Doubt, IdempotencyKey, Untouched};
use tower_service::Service;

use super::refusal;
use super::upload::{Late, Upload};
use crate::fault::{Class, Fault};

/// Meant for one connection, not for the next.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// How long the service may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Sends requests to one address, whatever host they name.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    client: Client<HttpConnector, Body>,
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    authority: Authority,
    host: HeaderValue,
    /// Before every path.
    base: String,
    /// How long a request may stand still, and how long the reply may take once it is whole.
    limits: (Duration, Duration),
}

/// Whether the service may be at an address of this link, where clouds tell every
/// process of a machine its secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkLocal {
    Allow,
    Refuse,
}

/// What comes of a request that is sent.
type Asked = Result<Response<hyper::body::Incoming>, hyper_util::client::legacy::Error>;

impl Upstream {
    pub(super) fn new(url: &str, limits: (Duration, Duration), link_local: LinkLocal) -> Result<Self, Fault> {
        let refuse = |why: &str| {
            Fault::new(Class::Input, format!("--upstream: {why}"))
                .help("write http://host:port or http://host:port/base")
        };
        let uri: Uri = url.parse().map_err(|_| refuse("this is no URL"))?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(refuse("only http:// is spoken to the service behind the gate"));
        }
        let authority = uri.authority().ok_or_else(|| refuse("the URL names no host"))?.clone();
        if authority.as_str().contains('@') {
            return Err(refuse("the URL must not carry a password"));
        }
        if uri.query().is_some() {
            return Err(refuse("the URL must not have a query"));
        }
        if link_local == LinkLocal::Refuse && is_link_local(authority.host()) {
            return Err(Fault::new(
                Class::Input,
                "--upstream: this address is link-local, and clouds tell the secrets of a machine at such",
            )
            .help("if the service really is there, add --allow-link-local"));
        }
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| refuse("this is no host"))?;
        let base = uri.path().trim_end_matches('/').to_owned();
        let mut connector = HttpConnector::new();
        // Before the time for an answer is over: who was not reached has done nothing.
        connector.set_connect_timeout(Some(CONNECT.min(limits.1 / 2)));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            // Shorter than most services keep a connection; what was not sent on one that is gone is sent on another.
            .pool_idle_timeout(Duration::from_secs(4))
            .build(connector);
        Ok(Self { client, place: Arc::new(Place { authority, host, base, limits }) })
    }

    /// The same request to our service: of the address only path and query are the client's.
    fn redirect(&self, mut request: Request<Body>) -> Option<Request<Body>> {
        let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
        // `OPTIONS *` and absolute forms have no path of their own.
        let path = if path.starts_with('/') { path } else { "/" };
        // Whether they leave the base, or mean another path than policies were looked up by, depends on the service.
        if has_dots(path.split('?').next().unwrap_or_default()) {
            return None;
        }
        let target = format!("{}{path}", self.place.base);
        let uri =
            Uri::builder().scheme("http").authority(self.place.authority.clone()).path_and_query(target);
        *request.uri_mut() = uri.build().ok()?;
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        strip(headers);
        let host = headers.remove(HOST);
        headers.remove(FORWARDED);
        if let Some(host) = host {
            headers.insert(FORWARDED_HOST, host);
        }
        headers.insert(HOST, self.place.host.clone());
        Some(request)
    }

    /// Sends it, and waits for an answer as long as there may come one.
    async fn ask(&self, request: Request<Body>) -> Result<Asked, Late> {
        let limits = self.place.limits;
        // With a key it was let in when all of it was there: nobody can be slow but the service.
        if request.extensions().get::<IdempotencyKey>().is_some() {
            let answer = tokio::time::timeout(limits.1, self.client.request(request)).await;
            return answer.map_err(|_elapsed| Late::Service);
        }
        let (parts, body) = request.into_parts();
        let (body, progress) = Upload::new(body);
        let request = Request::from_parts(parts, Body::new(body));
        progress.limit(limits, self.client.request(request)).await
    }

    async fn send(self, request: Request<Body>) -> Response<Body> {
        let Some(request) = self.redirect(request) else {
            return misaddressed();
        };
        match self.ask(request).await {
            // Nobody is asked to switch protocols, so whoever does says something else than it was asked.
            Ok(Ok(response)) if response.status().is_informational() => {
                tracing::warn!(status = response.status().as_u16(), "the service gave no final answer");
                problem(
                    StatusCode::BAD_GATEWAY,
                    "the service gave no final answer; nobody knows what it did",
                    true,
                )
            }
            Ok(Ok(response)) => pass_on(response),
            // Nothing was sent, so nothing has happened.
            Ok(Err(error)) if error.is_connect() => {
                tracing::warn!(%error, "the service cannot be reached");
                let detail = "the service cannot be reached; nothing was done";
                let mut response = problem(StatusCode::BAD_GATEWAY, detail, false);
                response.extensions_mut().insert(Untouched);
                response
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "the service hung up");
                problem(StatusCode::BAD_GATEWAY, "the service hung up; nobody knows what it did", true)
            }
            // Part of it was sent, and what the service makes of that is its own affair.
            Err(Late::Client) => problem(
                StatusCode::REQUEST_TIMEOUT,
                "the request stood still before it was whole; nobody knows what the service did with it",
                true,
            ),
            Err(Late::Service) => {
                tracing::warn!("the service did not answer in time");
                problem(
                    StatusCode::GATEWAY_TIMEOUT,
                    "the service did not answer; nobody knows what it did",
                    true,
                )
            }
        }
    }
}

fn misaddressed() -> Response<Body> {
    let status = StatusCode::BAD_REQUEST;
    let detail = "the address of the request is ambiguous, or cannot be understood";
    let mut response =
        (status, refusal::FIELDS, refusal::text(status, "request-misaddressed", detail, Some(false)))
            .into_response();
    response.extensions_mut().insert(Untouched);
    response
}

/// The answer as it is for our client: of how it came, nothing.
fn pass_on(response: Response<hyper::body::Incoming>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    // A length beside an encoding was not gone by, and may be any; one that is said twice our client may refuse.
    let mut lengths = parts.headers.get_all(CONTENT_LENGTH).iter();
    let is_plain = lengths.next().is_none_or(|length| length.as_bytes().iter().all(u8::is_ascii_digit));
    if !is_plain || lengths.next().is_some() || parts.headers.contains_key(TRANSFER_ENCODING) {
        parts.headers.remove(CONTENT_LENGTH);
    }
    strip(&mut parts.headers);
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, Body::new(body))
}

/// Whether a host is an address that only this link knows, or one at which a cloud answers.
fn is_link_local(host: &str) -> bool {
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    // Without the name of an interface.
    let literal = literal.split('%').next().unwrap_or(literal);
    match literal.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(address)) => address.is_link_local(),
        Ok(IpAddr::V6(address)) => {
            address.is_unicast_link_local() || address.segments() == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]
        }
        Err(_) => false,
    }
}

/// Removes what is meant for one connection, and whatever that names.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(UPGRADE);
}

fn problem(status: StatusCode, detail: &str, in_doubt: bool) -> Response<Body> {
    // Whether a request that may have taken effect may be sent again is for the gate's policy to say.
    let (code, is_retryable) =
        if in_doubt { ("outcome-unknown", None) } else { ("upstream-unreachable", Some(true)) };
    let text = refusal::text(status, code, detail, is_retryable);
    let mut response = (status, refusal::FIELDS, text).into_response();
    if in_doubt {
        response.extensions_mut().insert(Doubt);
    }
    response
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let upstream = self.clone();
        Box::pin(async move { Ok(upstream.send(request).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_link_are_told_from_others() {
        for host in [
            "169.254.169.254",
            "169.254.0.1",
            "[fe80::1]",
            "[febf::1]",
            "[fd00:ec2::254]",
            "[::ffff:169.254.169.254]",
        ] {
            assert!(is_link_local(host), "{host}");
        }
        for host in
            ["127.0.0.1", "10.0.0.1", "[::1]", "[fd00::1]", "[fec0::1]", "169.254.example", "localhost"]
        {
            assert!(!is_link_local(host), "{host}");
        }
    }
}
