//! The service behind the proxy.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{Request, Response, StatusCode, Uri};
use axum::response::IntoResponse as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use oncebox_gate::{Doubt, Untouched};
use tower_service::Service;

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
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Sends requests to one address, whatever host they name.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    client: Client<HttpConnector, Body>,
    authority: Authority,
    /// Before every path.
    base: String,
    /// How long a request may stand still, and how long the reply may take once it is whole.
    limits: (Duration, Duration),
}

impl Upstream {
    pub(super) fn new(url: &str, limits: (Duration, Duration)) -> Result<Self, Fault> {
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
        let base = uri.path().trim_end_matches('/').to_owned();
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            // Shorter than most services keep a connection; what was not sent on one that is gone is sent on another.
            .pool_idle_timeout(Duration::from_secs(4))
            .build(connector);
        Ok(Self { client, authority, base, limits })
    }

    /// The same request to our service: of the address only path and query are the client's.
    fn redirect(&self, mut request: Request<Body>) -> Option<Request<Body>> {
        let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
        // `OPTIONS *` and absolute forms have no path of their own.
        let path = if path.starts_with('/') { path } else { "/" };
        let target = format!("{}{path}", self.base);
        let uri = Uri::builder().scheme("http").authority(self.authority.clone()).path_and_query(target);
        *request.uri_mut() = uri.build().ok()?;
        *request.version_mut() = axum::http::Version::HTTP_11;
        let headers = request.headers_mut();
        strip(headers);
        let host = headers.remove(HOST);
        headers.remove(FORWARDED);
        if let Some(host) = host {
            headers.insert(FORWARDED_HOST, host);
        }
        headers.insert(HOST, HeaderValue::from_str(self.authority.as_str()).ok()?);
        Some(request)
    }

    async fn send(self, request: Request<Body>) -> Response<Body> {
        let Some(request) = self.redirect(request) else {
            return problem(
                StatusCode::BAD_REQUEST,
                "the address of the request cannot be understood",
                false,
            );
        };
        let (parts, body) = request.into_parts();
        let (body, progress) = Upload::new(body);
        let request = Request::from_parts(parts, Body::new(body));
        match progress.limit(self.limits, self.client.request(request)).await {
            Ok(Ok(response)) => {
                let (mut parts, body) = response.into_parts();
                strip(&mut parts.headers);
                Response::from_parts(parts, Body::new(body))
            }
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
    let mut text = serde_json::json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
        "code": if in_doubt { "outcome-unknown" } else { "upstream-unreachable" },
    });
    // Whether a request that may have taken effect may be sent again is for the gate's policy to say.
    if !in_doubt {
        text["retryable"] = true.into();
    }
    let kind = [("content-type", "application/problem+json"), ("cache-control", "no-store")];
    let mut response = (status, kind, text.to_string()).into_response();
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
