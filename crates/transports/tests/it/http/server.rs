//! Servers: one that answers as it is told, and one that is only a socket.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request};
use axum::response::Response;
use oncebox_core::Envelope;
use oncebox_core::cloudevents::{Parts, decode, percent_decode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A request that arrived.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// What a receiver makes of it, by the rules of CloudEvents and nothing else.
    pub(super) fn envelope(&self) -> Envelope {
        let mut lines = BTreeMap::new();
        for (name, value) in &self.headers {
            lines.insert(name.as_str().to_owned(), value.to_str().unwrap().to_owned());
        }
        let content_type = lines.remove("content-type").unwrap_or_default();
        let transport = ["host", "content-length", "user-agent", "idempotency-key", "traceparent"];
        lines.retain(|name, _| !transport.contains(&name.as_str()) && !name.starts_with("webhook-"));
        let (attributes, headers): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|(name, _)| name.starts_with("ce-"));
        let attributes =
            attributes.into_iter().map(|(name, value)| (name[3..].to_owned(), percent_decode(&value)));
        let body = self.body.to_vec();
        decode(Parts { content_type, attributes: attributes.collect(), headers, body }).unwrap()
    }
}

pub(super) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// A server that answers each request as `answer` says.
pub(super) struct Server {
    /// Its address, without a slash at the end.
    pub(super) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    serving: JoinHandle<()>,
}

impl Server {
    pub(super) async fn start(answer: impl Fn(Seen) -> Answering + Clone + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let router = Router::new().fallback(move |request: Request<Body>| {
            let (log, answer) = (Arc::clone(&log), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                assert_eq!(head.method, "POST");
                let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
                let seen = Seen { path: head.uri.path().to_owned(), headers: head.headers, body };
                log.lock().unwrap().push(seen.clone());
                answer(seen).await
            }
        });
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, seen, serving }
    }

    /// A server that answers every request alike.
    pub(super) async fn answering(status: u16, headers: &[(&'static str, &str)]) -> Self {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Self::start(move |_| {
            let mut response = reply(status, Body::empty());
            for (name, value) in &headers {
                response.headers_mut().insert(*name, value.parse().unwrap());
            }
            Box::pin(async { response })
        })
        .await
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The ids of what arrived, in order.
    pub(super) fn ids(&self) -> Vec<String> {
        self.seen().iter().map(|seen| seen.header("ce-id").unwrap().to_owned()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

pub(super) fn reply(status: u16, body: impl Into<Body>) -> Response {
    Response::builder().status(status).body(body.into()).unwrap()
}

/// A socket that reads a request, says `answer` and hangs up; with a reset if so asked.
pub(super) async fn socket(answer: &'static [u8], is_reset: bool) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 64 << 10];
            _ = stream.read(&mut request).await;
            stream.write_all(answer).await.unwrap();
            if is_reset {
                stream.set_zero_linger().unwrap();
            }
        }
    });
    (url, serving)
}
