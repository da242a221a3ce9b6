//! Replies that come in pieces, are too large to keep, or cannot be kept at all.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, Response};
use axum::routing::post;
use bytes::Bytes;
use oncebox::gate::{Gate, Policy};
use oncebox::memory::MemoryStore;
use tower_service::Service as _;

/// So many pieces, then trailers.
struct Pieces {
    left: usize,
    trailers: Option<HeaderMap>,
}

const PIECE: &[u8] = b"piece";

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(self.trailers.take().map(|all| Ok(http_body::Frame::trailers(all))));
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(PIECE)))))
    }
}

/// Answers with 100 pieces, of which three can be kept.
fn app(kind: &'static str, trailers: Option<HeaderMap>) -> (Router, Arc<AtomicUsize>) {
    let stall = Duration::from_secs(5);
    let policy = Policy { max_response_body: 3 * PIECE.len(), stall, ..Policy::default() };
    served(policy, kind, trailers)
}

fn served(policy: Policy, kind: &'static str, trailers: Option<HeaderMap>) -> (Router, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        let body = Body::new(Pieces { left: 100, trailers });
        Response::builder().header("content-type", kind).body(body).unwrap()
    };
    let gate = Gate::new(MemoryStore::new()).policy(policy).unwrap().unscoped();
    (Router::new().route("/", post(handler)).layer(gate), runs)
}

async fn send(app: &mut Router) -> Response<Body> {
    let request = Request::post("/").header("idempotency-key", "k").body(Body::empty()).unwrap();
    app.call(request).await.unwrap()
}

async fn told(app: &mut Router) -> (u16, String) {
    let response = send(app).await;
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 4096).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_is_not_told_that_it_has_all() {
    let (mut app, runs) = app("text/plain", None);

    let first = send(&mut app).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let read = to_bytes(first.into_body(), 1 << 20).await;

    assert!(read.is_err(), "pieces are missing: {read:?}");
    let (status, body) = told(&mut app).await;
    assert_eq!((status, runs.load(Ordering::SeqCst)), (409, 1), "{body}");
    assert!(body.contains("response-not-retained"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_gets_all_of_a_reply_that_is_not_kept() {
    let (mut app, runs) = app("text/plain", None);

    let first = to_bytes(send(&mut app).await.into_body(), 1 << 20).await.unwrap();

    assert_eq!(first, PIECE.repeat(100));
    assert_eq!((told(&mut app).await.0, runs.load(Ordering::SeqCst)), (409, 1));
}

/// Although it would fit.
#[tokio::test(start_paused = true)]
async fn a_reply_in_pieces_is_not_kept_where_none_is() {
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("1"))]);
    let policy = Policy { keep_bodies: false, ..Policy::default() };
    let (mut app, runs) = served(policy, "text/plain", Some(trailers));

    let first = to_bytes(send(&mut app).await.into_body(), 1 << 20).await.unwrap();
    let (status, problem) = told(&mut app).await;

    assert_eq!(first, PIECE.repeat(100));
    assert_eq!((status, runs.load(Ordering::SeqCst)), (409, 1), "{problem}");
    assert!(problem.contains("response-not-retained"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn a_large_reply_of_grpc_is_judged_by_its_end_although_nobody_reads_it() {
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
    let (mut app, runs) = app("application/grpc", Some(trailers));

    drop(send(&mut app).await);
    tokio::time::sleep(Duration::from_secs(60)).await;

    assert!(told(&mut app).await.1.contains("response-not-retained"));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn what_says_how_it_went_in_its_body_is_passed_on_and_not_kept() {
    let (mut app, runs) = app("application/grpc-web+proto", None);

    for _ in 0..2 {
        let whole = to_bytes(send(&mut app).await.into_body(), 1 << 20).await.unwrap();
        assert_eq!(whole.len(), 100 * PIECE.len());
    }

    assert_eq!(runs.load(Ordering::SeqCst), 2);
}
