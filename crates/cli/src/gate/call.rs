//! A unary call of gRPC, by HTTP/2 without TLS: one message there, and one
//! back with how it went.

use std::io;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::timeout;

use super::client::{Message, Target};

/// What every call is sent as.
pub(super) const KIND: &str = "application/grpc";
/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// No answer is larger.
const LARGEST: usize = 1 << 20;

/// A message with what goes before it: that it is not compressed, and its length.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// What came back.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// What followed the body; of a call that has none, its headers say it.
    pub(super) trailers: HeaderMap,
}

impl Called {
    /// How the call went.
    pub(super) fn status(&self) -> Option<&str> {
        let told = self.trailers.get("grpc-status").or_else(|| self.headers.get("grpc-status"));
        told.and_then(|status| status.to_str().ok())
    }

    pub(super) fn is_replayed(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|marker| marker == "true")
    }
}

impl Target {
    pub(super) async fn call(&self, message: &Message) -> io::Result<Called> {
        timeout(PATIENCE, self.exchange(message))
            .await
            .unwrap_or_else(|_| Err(io::Error::other("no answer in time")))
    }

    async fn exchange(&self, message: &Message) -> io::Result<Called> {
        let (mut line, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(self.connect().await?))
                .await
                .map_err(io::Error::other)?;
        // Dropped with its task when nobody has a call on it any more.
        tokio::spawn(connection);
        let mut request = Request::post(format!("http://{}{}{}", self.address, self.base, message.path))
            .header("te", "trailers");
        for (name, value) in &message.headers {
            request = request.header(name, HeaderValue::from_bytes(value).map_err(io::Error::other)?);
        }
        let request =
            request.body(Full::new(Bytes::from(framed(&message.body)))).map_err(io::Error::other)?;
        let (parts, body) = line.send_request(request).await.map_err(io::Error::other)?.into_parts();
        if parts.status != 200 {
            return Err(io::Error::other(format!(
                "a call was answered with the status {} of HTTP",
                parts.status
            )));
        }
        let whole = Limited::new(body, LARGEST).collect().await.map_err(io::Error::other)?;
        let trailers = whole.trailers().cloned().unwrap_or_default();
        Ok(Called { headers: parts.headers, body: whole.to_bytes(), trailers })
    }
}
