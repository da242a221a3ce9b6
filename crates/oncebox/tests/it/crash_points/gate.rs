//! H1 to H8: an HTTP request, from its admission to the reply its client reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use futures_util::stream;
use oncebox::gate::{Caller, Claimed, Gate, GateBuilder, IdempotencyKey, OnDoubt, Policy, Receipts};
use oncebox::{CrashPoint, Probe, Store as _};
use oncebox_conformance::{Entry, StoreFixture};
use tower_service::Service as _;

use super::ground::Ground;
use super::stage::Stage;

const LEASE: Duration = Duration::from_secs(1);
/// A key is free by then.
const PATIENCE: Duration = Duration::from_secs(20);

/// A service, and how often it ran.
struct Books<F> {
    fixture: Arc<F>,
    runs: AtomicUsize,
}

fn booked(key: &str) -> Entry {
    Entry { handler: "gate".into(), id: key.into(), key: None, sequence: 1, amount: 1 }
}

impl<F: StoreFixture<Store: Receipts>> Books<F> {
    fn run(&self) -> usize {
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

fn reply(run: usize) -> Response {
    (StatusCode::CREATED, [("location", "/books/1"), ("x-two", "b")], format!("run {run} \u{0}"))
        .into_response()
}

/// Books in a transaction of its own.
async fn apart<F>(State(books): State<Arc<Books<F>>>, key: IdempotencyKey) -> Response
where
    F: StoreFixture<Store: Receipts>,
{
    let (run, store) = (books.run(), books.fixture.store());
    let mut tx = store.begin().await.unwrap();
    books.fixture.effect(&mut tx, &booked(key.key.as_str())).await.unwrap();
    store.commit(tx).await.unwrap();
    reply(run)
}

/// Books in the transaction that has the key.
async fn claimed<F>(
    State(books): State<Arc<Books<F>>>,
    key: IdempotencyKey,
    mut tx: Claimed<F::Store>,
) -> Response
where
    F: StoreFixture<Store: Receipts>,
{
    let run = books.run();
    books.fixture.effect(&mut tx, &booked(key.key.as_str())).await.unwrap();
    tx.seal(reply(run)).await.map(Body::new)
}

fn gate<F: Ground<Store: Receipts>>(
    stage: &Stage<F>,
    probe: Probe,
    on_doubt: OnDoubt,
) -> GateBuilder<F::Store> {
    let policy = Policy { lease: LEASE, on_doubt, ..Policy::default() };
    // Each process asks the database: what another one knew died with it.
    Gate::new(stage.store.clone()).policy(policy).unwrap().cache(0).probe(probe)
}

struct Shop<F> {
    books: Arc<Books<F>>,
}

impl<F: Ground<Store: Receipts>> Shop<F> {
    fn new(stage: &Stage<F>) -> Self {
        Self { books: Arc::new(Books { fixture: Arc::clone(&stage.fixture), runs: AtomicUsize::new(0) }) }
    }

    /// A process whose gate keeps the reply after the handler.
    fn layered(&self, gate: GateBuilder<F::Store>) -> Router {
        let service = any(apart::<F>);
        Router::new().fallback(service).with_state(Arc::clone(&self.books)).layer(scoped(gate))
    }

    /// A process whose handlers claim and seal in their own transaction.
    fn claiming(&self, gate: GateBuilder<F::Store>) -> Router {
        let service = any(claimed::<F>);
        Router::new()
            .fallback(service)
            .with_state(Arc::clone(&self.books))
            .layer(scoped(gate.transactional()))
    }
}

fn scoped<S: Receipts>(gate: GateBuilder<S>) -> Gate<S> {
    gate.scope(|request| {
        let user = request.headers.get("x-user").map_or("", |user| user.to_str().unwrap());
        Some(Caller { tenant: String::new(), principal: user.to_owned() })
    })
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    fn is(&self, run: usize) -> bool {
        self.status == 201
            && self.headers["location"] == "/books/1"
            && self.body == format!("run {run} \u{0}").as_bytes()
    }

    fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        problem["code"].as_str().unwrap().to_owned()
    }
}

fn request(key: &str) -> Request<Body> {
    Request::post("/books").header("idempotency-key", key).body(Body::from("{}")).unwrap()
}

async fn call(app: &Router, request: Request<Body>) -> Answer {
    let response = app.clone().call(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, 1 << 20).await.map_or_else(|_| Vec::new(), |body| body.to_vec());
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

async fn send(app: &Router, key: &str) -> Answer {
    call(app, request(key)).await
}

/// Sends it until it is no longer told to come back.
async fn insist(app: &Router, key: &str) -> Answer {
    let insisted = async {
        loop {
            let answer = send(app, key).await;
            if answer.status != 409 || answer.code() != "operation-in-progress" {
                return answer;
            }
            assert!(answer.headers.contains_key("retry-after"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, insisted).await.expect("the key is stuck")
}

async fn one_effect<F: Ground>(stage: &Stage<F>, key: &str) {
    stage.committed.lock().unwrap().push(booked(key));
    stage.check().await;
}

pub(super) async fn h1_a_key_whose_process_died_is_taken_until_its_lease_is_over<F>(stage: Arc<Stage<F>>)
where
    F: Ground<Store: Receipts>,
{
    let shop = Shop::new(&stage);
    let dying = shop.layered(gate(&stage, stage.dies_at(CrashPoint::H1, 1), OnDoubt::Retry));
    let fresh = shop.layered(gate(&stage, Probe::default(), OnDoubt::Retry));

    let died = tokio::time::Instant::now();
    send(&dying, "k").await;
    let at_once = send(&fresh, "k").await;
    let asked = died.elapsed();
    let later = insist(&fresh, "k").await;

    if asked < LEASE {
        assert_eq!((at_once.status, at_once.code().as_str()), (409, "operation-in-progress"));
    }
    assert!(later.is(1) && !later.is_replay(), "{later:?}");
    one_effect(&stage, "k").await;
}

pub(super) async fn h1_a_claim_dies_with_its_process<F: Ground<Store: Receipts>>(stage: Arc<Stage<F>>) {
    let shop = Shop::new(&stage);
    let dying = shop.claiming(gate(&stage, stage.dies_at(CrashPoint::H1, 1), OnDoubt::Retry));
    let fresh = shop.claiming(gate(&stage, Probe::default(), OnDoubt::Retry));

    send(&dying, "k").await;
    // A server needs a moment to see that somebody is gone; until then the key is theirs.
    let soon = insist(&fresh, "k").await;

    assert!(soon.is(1), "{soon:?}");
    one_effect(&stage, "k").await;
}

pub(super) async fn h2_a_reply_that_was_sealed_and_lost_is_replayed_byte_for_byte<F>(stage: Arc<Stage<F>>)
where
    F: Ground<Store: Receipts>,
{
    let shop = Shop::new(&stage);
    let dying = shop.layered(gate(&stage, stage.dies_at(CrashPoint::H2, 1), OnDoubt::Retry));
    let fresh = shop.layered(gate(&stage, Probe::default(), OnDoubt::Retry));

    send(&dying, "k").await;
    let again = send(&fresh, "k").await;

    assert!(again.is(1) && again.is_replay(), "{again:?}");
    assert_eq!(shop.books.runs(), 1);
    one_effect(&stage, "k").await;
}

pub(super) async fn h2_a_reply_that_was_committed_and_lost_is_replayed_byte_for_byte<F>(stage: Arc<Stage<F>>)
where
    F: Ground<Store: Receipts>,
{
    let shop = Shop::new(&stage);
    let dying = shop.claiming(gate(&stage, stage.dies_at(CrashPoint::H2, 1), OnDoubt::Retry));
    let fresh = shop.claiming(gate(&stage, Probe::default(), OnDoubt::Retry));

    send(&dying, "k").await;
    let again = send(&fresh, "k").await;

    assert!(again.is(1) && again.is_replay(), "{again:?}");
    assert_eq!(shop.books.runs(), 1);
    one_effect(&stage, "k").await;
}

pub(super) async fn h3_of_copies_at_two_processes_one_runs<F: Ground<Store: Receipts>>(stage: Arc<Stage<F>>) {
    let shop = Shop::new(&stage);
    let processes = [(); 2].map(|()| shop.claiming(gate(&stage, Probe::default(), OnDoubt::Retry)));
    let mut copies = tokio::task::JoinSet::new();
    for place in 0..20 {
        let app = processes[place % 2].clone();
        copies.spawn(async move { insist(&app, "k").await });
    }
    let answers = copies.join_all().await;

    assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1);
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == answers[0].body));
    one_effect(&stage, "k").await;
}

pub(super) async fn h4_another_request_under_the_key_never_sees_the_first_reply<F>(stage: Arc<Stage<F>>)
where
    F: Ground<Store: Receipts>,
{
    let shop = Shop::new(&stage);
    let app = shop.layered(gate(&stage, Probe::default(), OnDoubt::Retry));
    let first = send(&app, "k").await;
    let others = [
        (Method::POST, "/books", "{\"a\":1}"),
        (Method::PUT, "/books", "{}"),
        (Method::POST, "/others", "{}"),
    ];

    for (method, path, body) in others {
        let other = Request::builder().method(method).uri(path).header("idempotency-key", "k");
        let answer = call(&app, other.body(Body::from(body)).unwrap()).await;

        assert_eq!((answer.status, answer.code().as_str()), (422, "idempotency-key-reused"));
        assert!(!answer.headers.contains_key("location"), "{answer:?}");
    }
    assert!(first.is(1) && shop.books.runs() == 1);
    one_effect(&stage, "k").await;
}

pub(super) async fn h5_the_key_of_another_caller_is_another_key<F: Ground<Store: Receipts>>(
    stage: Arc<Stage<F>>,
) {
    let shop = Shop::new(&stage);
    let app = shop.layered(gate(&stage, Probe::default(), OnDoubt::Retry));
    let of = |user: &'static str| {
        let mut request = request("k");
        request.headers_mut().insert("x-user", user.parse().unwrap());
        request
    };

    let (anna, ben) = (call(&app, of("anna")).await, call(&app, of("ben")).await);

    assert!(anna.is(1) && ben.is(2) && !ben.is_replay(), "{ben:?}");
    assert!(call(&app, of("anna")).await.is(1), "each has a reply of its own");
}

pub(super) async fn h6_an_effect_without_its_reply_is_rolled_back<F: Ground<Store: Receipts>>(
    stage: Arc<Stage<F>>,
) {
    let shop = Shop::new(&stage);
    let dying = shop.claiming(gate(&stage, stage.dies_at(CrashPoint::H6, 1), OnDoubt::Retry));
    let fresh = shop.claiming(gate(&stage, Probe::default(), OnDoubt::Retry));

    send(&dying, "k").await;
    assert!(stage.fixture.effects().await.is_empty(), "no effect without its reply");
    let again = insist(&fresh, "k").await;

    assert!(again.is(2) && !again.is_replay(), "{again:?}");
    one_effect(&stage, "k").await;
}

/// The window that only the handler's own transaction closes: the effect is
/// there and its reply is not. Nobody can tell, so it runs again, or is refused.
pub(super) async fn h6_a_reply_kept_apart_from_its_effect_may_be_lost_and_that_can_block<F>(
    stage: Arc<Stage<F>>,
) where
    F: Ground<Store: Receipts>,
{
    let shop = Shop::new(&stage);
    for (key, on_doubt) in [("again", OnDoubt::Retry), ("blocked", OnDoubt::Block)] {
        let dying = shop.layered(gate(&stage, stage.dies_at(CrashPoint::H6, 1), on_doubt));
        let fresh = shop.layered(gate(&stage, Probe::default(), on_doubt));

        send(&dying, key).await;
        let later = insist(&fresh, key).await;

        let effects = stage.fixture.effects().await.iter().filter(|effect| effect.id == key).count();
        match on_doubt {
            OnDoubt::Retry => assert_eq!((later.status, effects), (201, 2), "at least once"),
            OnDoubt::Block => {
                assert_eq!((later.code().as_str(), effects), ("outcome-unknown", 1), "at most once")
            }
        }
    }
}

pub(super) async fn h7_a_reply_that_is_cut_off_is_an_unknown_outcome<F: Ground<Store: Receipts>>(
    stage: Arc<Stage<F>>,
) {
    for on_doubt in [OnDoubt::Retry, OnDoubt::Block] {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let broken = move || async move {
            let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let end = if run == 1 { Err("the service died") } else { Ok(Bytes::from_static(b"!")) };
            Body::from_stream(stream::iter([Ok(Bytes::from_static(b"half")), end]))
        };
        let app = Router::new().fallback(broken).layer(scoped(gate(&stage, Probe::default(), on_doubt)));
        let key = format!("{on_doubt:?}");

        let first = send(&app, &key).await;
        let second = insist(&app, &key).await;

        assert_eq!(first.body, b"", "the client sees that it was cut off");
        match on_doubt {
            OnDoubt::Retry => {
                assert_eq!((second.body.as_slice(), second.is_replay()), (&b"half!"[..], false))
            }
            OnDoubt::Block => assert_eq!((second.status, second.code().as_str()), (409, "outcome-unknown")),
        }
    }
}

pub(super) async fn h8_a_request_that_is_cut_off_uses_up_no_key<F: Ground<Store: Receipts>>(
    stage: Arc<Stage<F>>,
) {
    let shop = Shop::new(&stage);
    let app = shop.layered(gate(&stage, Probe::default(), OnDoubt::Block));
    let half = stream::iter([Ok(Bytes::from_static(b"{")), Err("the client is gone")]);
    let cut = Request::post("/books").header("idempotency-key", "k").body(Body::from_stream(half)).unwrap();

    let first = call(&app, cut).await;
    let runs = shop.books.runs();
    let whole = send(&app, "k").await;

    assert_eq!((first.status, first.code().as_str(), runs), (400, "body-incomplete", 0));
    assert!(whole.is(1), "{whole:?}");
    one_effect(&stage, "k").await;
}
