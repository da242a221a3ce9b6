//! gRPC through the layer: a server and a client of tonic, of which the gate
//! sees what HTTP shows. How a call went is in `grpc-status`, after the body.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Request, Response};
use bytes::{Buf as _, BufMut as _};
use oncebox::gate::{Gate, Policy};
use oncebox::memory::MemoryStore;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};
use tower_service::Service;

const PLACE: &str = "/shop.Orders/Place";

/// Messages that are text.
#[derive(Clone, Copy)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, item: String, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(item.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        Ok(Some(String::from_utf8(bytes.to_vec()).unwrap()))
    }
}

/// A method that answers by how often it ran.
#[derive(Clone)]
struct Orders {
    runs: Arc<AtomicUsize>,
    answer: fn(usize) -> Result<String, Status>,
}

impl tonic::server::UnaryService<String> for Orders {
    type Response = String;
    type Future = std::future::Ready<Result<tonic::Response<String>, Status>>;

    fn call(&mut self, _: tonic::Request<String>) -> Self::Future {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        std::future::ready((self.answer)(run).map(|text| {
            let mut response = tonic::Response::new(text);
            response.metadata_mut().insert("x-run", run.to_string().parse().unwrap());
            response
        }))
    }
}

type Pending<T> = Pin<Box<dyn Future<Output = Result<T, Infallible>> + Send>>;

impl Service<Request<Body>> for Orders {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pending<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let orders = self.clone();
        Box::pin(async move { Ok(tonic::server::Grpc::new(Text).unary(orders, request).await) })
    }
}

/// What the client of tonic calls: the router, which has bodies of its own.
#[derive(Clone)]
struct Front(Router);

impl Service<Request<tonic::body::Body>> for Front {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pending<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.call(request.map(Body::new)))
    }
}

fn server(answer: fn(usize) -> Result<String, Status>) -> (Router, Arc<AtomicUsize>) {
    server_with(Policy::default(), answer)
}

fn server_with(policy: Policy, answer: fn(usize) -> Result<String, Status>) -> (Router, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let orders = Orders { runs: Arc::clone(&runs), answer };
    let gate = Gate::new(MemoryStore::new()).policy(policy).unwrap().unscoped();
    (Router::new().route_service(PLACE, orders).layer(gate), runs)
}

/// The reply, and whether it was a replay.
async fn place(app: &Router, key: &str) -> Result<(String, bool), Status> {
    let mut client = tonic::client::Grpc::new(Front(app.clone()));
    let mut request = tonic::Request::new("tea".to_owned());
    request.metadata_mut().insert("idempotency-key", key.parse().unwrap());
    client.ready().await.unwrap();
    let response = client.unary(request, PathAndQuery::from_static(PLACE), Text).await?;
    let is_replay = response.metadata().contains_key("idempotent-replayed");
    Ok((response.into_inner(), is_replay))
}

/// A call as it is on the wire: headers, bytes and what comes after them.
async fn raw(app: &Router, key: &str) -> (HeaderMap, Vec<u8>, HeaderMap) {
    let framed = [&[0, 0, 0, 0, 3][..], b"tea"].concat();
    let request = Request::post(PLACE).header("content-type", "application/grpc").header("te", "trailers");
    let request = request.header("idempotency-key", key).body(Body::from(framed)).unwrap();
    let (parts, mut body) = app.clone().call(request).await.unwrap().into_parts();
    let (mut data, mut trailers) = (Vec::new(), HeaderMap::new());
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.unwrap().into_data() {
            Ok(bytes) => data.extend_from_slice(&bytes),
            Err(frame) => trailers.extend(frame.into_trailers().unwrap()),
        }
    }
    (parts.headers, data, trailers)
}

#[tokio::test]
async fn a_call_that_went_well_is_replayed_with_its_trailers() {
    let (app, runs) = server(|run| Ok(format!("order {run}")));

    let (first_headers, first, first_trailers) = raw(&app, "k").await;
    let (headers, second, trailers) = raw(&app, "k").await;

    assert_eq!(first_trailers["grpc-status"], "0");
    assert_eq!((second, trailers), (first, first_trailers), "byte for byte");
    assert_eq!(
        (&headers["content-type"], &headers["x-run"]),
        (&first_headers["content-type"], &first_headers["x-run"])
    );
    assert!(
        headers.contains_key("idempotent-replayed") && !first_headers.contains_key("idempotent-replayed")
    );
    let (text, is_replay) = place(&app, "k").await.unwrap();
    assert_eq!(
        (text.as_str(), is_replay, runs.load(Ordering::SeqCst)),
        ("order 1", true, 1),
        "tonic reads it, too"
    );
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again() {
    for code in [Code::Unavailable, Code::Internal, Code::Unauthenticated] {
        let (app, runs) = server(match code {
            Code::Unavailable => {
                |run| if run == 1 { Err(Status::unavailable("later")) } else { Ok("done".into()) }
            }
            Code::Internal => |run| if run == 1 { Err(Status::internal("oops")) } else { Ok("done".into()) },
            _ => |run| if run == 1 { Err(Status::unauthenticated("who?")) } else { Ok("done".into()) },
        });

        assert_eq!(place(&app, "k").await.unwrap_err().code(), code);
        assert_eq!(place(&app, "k").await.unwrap(), ("done".into(), false));
        assert_eq!(place(&app, "k").await.unwrap(), ("done".into(), true));
        assert_eq!(runs.load(Ordering::SeqCst), 2, "{code:?}");
    }
}

#[tokio::test]
async fn a_refusal_that_would_be_the_same_again_is_replayed() {
    let (app, runs) = server(|run| Err(Status::not_found(format!("no tea, said run {run}"))));

    let (first, second) = (place(&app, "k").await.unwrap_err(), place(&app, "k").await.unwrap_err());

    assert_eq!((first.code(), first.message()), (Code::NotFound, "no tea, said run 1"));
    assert_eq!((second.code(), second.message()), (first.code(), first.message()));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn where_replies_are_not_kept_a_call_is_known_by_its_status() {
    let policy = Policy { keep_bodies: false, ..Policy::default() };
    let (refuses, refused) =
        server_with(policy.clone(), |run| Err(Status::not_found(format!("no patient, said run {run}"))));
    let (answers, answered) = server_with(policy, |run| Ok(format!("order {run}")));

    assert_eq!(place(&refuses, "k").await.unwrap_err().message(), "no patient, said run 1");
    let copy = place(&refuses, "k").await.unwrap_err();
    assert_eq!((copy.code(), copy.message()), (Code::NotFound, ""));
    assert_eq!(place(&answers, "k").await.unwrap(), ("order 1".into(), false));
    let copy = place(&answers, "k").await.unwrap_err();
    assert_eq!(copy.code(), Code::AlreadyExists);
    assert!(copy.message().starts_with("response-not-retained: "), "{copy:?}");
    assert_eq!([refused, answered].map(|runs| runs.load(Ordering::SeqCst)), [1, 1]);
}

/// What only HTTP would understand is told as gRPC has it, by its client as well as on the wire.
#[tokio::test]
async fn what_the_gate_refuses_is_a_status_of_grpc() {
    let (app, runs) = server(|run| Ok(format!("order {run}")));
    let mut front = Front(app.clone());
    let call = |key: &str, text: &str| {
        let mut request = tonic::Request::new(text.to_owned());
        request.metadata_mut().insert("idempotency-key", key.parse().unwrap());
        request
    };
    let ask = async |request| {
        let mut client = tonic::client::Grpc::new(front.clone());
        client.ready().await.unwrap();
        client.unary(request, PathAndQuery::from_static(PLACE), Text).await
    };
    ask(call("k", "tea")).await.unwrap();

    let reused = ask(call("k", "coffee")).await.unwrap_err();
    let malformed = ask(call(&"k".repeat(300), "tea")).await.unwrap_err();

    assert_eq!(reused.code(), Code::FailedPrecondition);
    assert!(reused.message().starts_with("idempotency-key-reused: This key was used"), "{reused:?}");
    assert_eq!(malformed.code(), Code::InvalidArgument);
    assert_eq!(runs.load(Ordering::SeqCst), 1);

    let request = Request::post(PLACE).header("content-type", "application/grpc");
    let request = request.header("idempotency-key", "k").body(Body::from("other")).unwrap();
    let response = front.0.call(request).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["grpc-status"]),
        (200, &"9".parse().unwrap())
    );
    assert_eq!(response.headers()["content-type"], "application/grpc");
}

/// A client that keeps to the protocol waits for as long as it is told.
#[tokio::test]
async fn a_call_that_still_runs_says_when_to_ask_again() {
    let (entered, mut is_in) = tokio::sync::mpsc::channel(1);
    let endless = async move || {
        entered.send(()).await.unwrap();
        std::future::pending::<()>().await;
    };
    let app = Router::new()
        .route(PLACE, axum::routing::post(endless))
        .layer(Gate::new(MemoryStore::new()).unscoped());
    let first = tokio::spawn({
        let app = app.clone();
        async move { raw(&app, "k").await }
    });
    is_in.recv().await.unwrap();

    let (headers, ..) = raw(&app, "k").await;

    assert_eq!(headers["grpc-status"], "10", "aborted");
    assert_eq!(headers["grpc-retry-pushback-ms"], "2000");
    first.abort();
}
