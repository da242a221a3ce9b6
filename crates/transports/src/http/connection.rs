//! The client: TLS by rustls, connections kept and reused, every step bounded.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use oncebox_core::{Error, Kind, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tower_service::Service;

use super::options::HttpOptions;
use super::target::{Leeway, is_link_local, is_localhost};

/// A connection nobody used for so long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest head of an answer.
const MAX_HEAD_BYTES: usize = 64 * 1024;

pub(super) type HttpClient = Client<BoundedConnector, Full<Bytes>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) fn client(connector: BoundedConnector, concurrency: usize) -> HttpClient {
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(concurrency)
        .pool_timer(TokioTimer::new())
        .http1_max_buf_size(MAX_HEAD_BYTES)
        .build(connector)
}

/// Connects, and gives up in time: the connectors below bound the TCP part only.
#[derive(Clone, Debug)]
pub(super) struct BoundedConnector {
    inner: HttpsConnector<HttpConnector<GuardedResolver>>,
    timeout: Duration,
}

impl BoundedConnector {
    pub(super) fn new(options: &HttpOptions) -> Result<Self> {
        let mut tcp = HttpConnector::new_with_resolver(GuardedResolver { leeway: options.leeway() });
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(IDLE_TIMEOUT));
        let inner = HttpsConnectorBuilder::new()
            .with_tls_config(tls(options)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Self { inner, timeout: options.connect_timeout })
    }
}

impl Service<Uri> for BoundedConnector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, timeout) = (self.inner.call(uri), self.timeout);
        Box::pin(async move {
            match tokio::time::timeout(timeout, connecting).await {
                Ok(connected) => connected,
                Err(_elapsed) => Err(format!("no connection within {timeout:?}").into()),
            }
        })
    }
}

/// Resolves names, and leaves out addresses that must not be posted to. The
/// check belongs here: a name can resolve to something else the next time.
#[derive(Clone, Debug)]
pub(super) struct GuardedResolver {
    leeway: Leeway,
}

impl Service<Name> for GuardedResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let leeway = self.leeway;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<_> = found.filter(|at| is_allowed(name.as_str(), *at, leeway)).collect();
            if allowed.is_empty() {
                let message = "the name resolves to addresses that are not allowed, or to none";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
            }
            Ok(allowed.into_iter())
        })
    }
}

fn is_allowed(name: &str, at: SocketAddr, leeway: Leeway) -> bool {
    // Plain http to localhost is allowed because it does not leave the machine.
    (leeway.link_local || !is_link_local(at.ip())) && (!is_localhost(name) || at.ip().is_loopback())
}

fn tls(options: &HttpOptions) -> Result<ClientConfig> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for pem in &options.roots_pem {
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| refuse("cannot be read", error.to_string()))?;
            roots.add(certificate).map_err(|error| refuse("cannot be trusted", error.to_string()))?;
        }
        if roots.len() == before {
            return Err(refuse("is missing", "there is no certificate in the PEM text".into()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refuse("cannot be checked", error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn refuse(what: &str, why: String) -> Error {
    Error::new(Kind::Config, format!("a certificate for an http sink {what}: {why}"))
}
