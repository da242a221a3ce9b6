//! The layer around a service of axum: keys that are claimed in the handler's
//! own transaction, and stores that are down.

mod cache;
mod grpc;
mod policies;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use bytes::Bytes;
use oncebox::gate::{
    Caller, Claimed, Gate, IdempotencyKey, InFlight, KeyMaker, KeySyntax, Policy, Receipts, RequestKey,
    Strategy,
};
use oncebox::stores::postgres::PostgresStore;
use oncebox::{Envelope, Mailbox, Outbox};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{Posted, SOURCE};
use oncebox_conformance::{Entry, MemoryFixture, StoreFixture};
use sqlx::PgPool;
use tokio::sync::Notify;
use tower_service::Service as _;

use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground as _;

/// What a handler does after its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Seals,
    /// Seals a reply that is not kept.
    Fails,
    Panics,
    /// Says that all is well, without sealing.
    Forgets,
}

struct Service<F> {
    fixture: Arc<F>,
    runs: AtomicUsize,
    ending: Ending,
}

async fn place<F>(State(service): State<Arc<Service<F>>>, mut tx: Claimed<F::Store>) -> Response
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let run = service.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let id = run.to_string();
    let effect = Entry { handler: "gate".into(), id, key: None, sequence: 1, amount: 1 };
    service.fixture.effect(&mut tx, &effect).await.unwrap();
    let outbox = Outbox::new(service.fixture.store()).source(SOURCE);
    outbox.put(&mut tx, &Posted::on("a", i64::try_from(run).unwrap())).await.unwrap();
    let reply = |status: StatusCode| (status, format!("run {run}")).into_response();
    match (service.ending, run) {
        (Ending::Panics, 1) => panic!("before the commit"),
        (Ending::Fails, 1) => tx.seal(reply(StatusCode::SERVICE_UNAVAILABLE)).await.map(Body::new),
        (Ending::Forgets, 1) => reply(StatusCode::CREATED),
        _ => tx.seal(reply(StatusCode::CREATED)).await.map(Body::new),
    }
}

fn app<F>(fixture: &Arc<F>, ending: Ending) -> (Router, Arc<Service<F>>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let service = Arc::new(Service { fixture: Arc::clone(fixture), runs: AtomicUsize::new(0), ending });
    let gate = Gate::new(fixture.store()).transactional().unscoped();
    let router = Router::new().route("/", post(place::<F>)).with_state(Arc::clone(&service)).layer(gate);
    (router, service)
}

async fn send(mut app: Router, key: Option<&str>) -> (u16, bool, String) {
    let request = Request::post("/");
    let request = if let Some(key) = key { request.header("idempotency-key", key) } else { request };
    let response = app.call(request.body(Body::from("{}")).unwrap()).await.unwrap();
    let is_replay = response.headers().contains_key("idempotent-replayed");
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, is_replay, String::from_utf8_lossy(&body).into_owned())
}

/// Effects and messages that were committed.
async fn committed<F: StoreFixture<Store: Receipts + Mailbox>>(fixture: &F) -> (usize, i64) {
    use oncebox::inspect::Inspect as _;
    (fixture.effect_count().await, fixture.store().status().await.unwrap().logged)
}

async fn a_reply_is_committed_with_its_effects<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let (app, service) = app(&fixture, Ending::Seals);

    let first = send(app.clone(), Some("k")).await;
    let second = send(app.clone(), Some("k")).await;

    assert_eq!(first, (201, false, "run 1".into()));
    assert_eq!(second, (201, true, "run 1".into()));
    assert_eq!((service.runs.load(Ordering::SeqCst), committed(&*fixture).await), (1, (1, 1)));
}

/// Whatever keeps a handler from sealing, nothing of it is left, and the next one runs.
async fn without_a_seal_nothing_has_happened<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    for (ending, status) in [(Ending::Fails, 503), (Ending::Panics, 500), (Ending::Forgets, 500)] {
        let (app, _) = app(&fixture, ending);
        let key = format!("{ending:?}");
        let before = committed(&*fixture).await;

        assert_eq!(send(app.clone(), Some(&key)).await.0, status, "{ending:?}");
        assert_eq!(committed(&*fixture).await, before, "{ending:?}");
        assert_eq!(send(app.clone(), Some(&key)).await, (201, false, "run 2".into()), "{ending:?}");
        assert_eq!(send(app, Some(&key)).await, (201, true, "run 2".into()), "{ending:?}");
    }
}

/// Whoever reads that a request came to nothing may send it again at once.
async fn a_key_is_free_before_its_client_is_told<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    for ending in [Ending::Fails, Ending::Panics, Ending::Forgets] {
        for n in 0..20 {
            let (app, _) = app(&fixture, ending);
            let key = format!("{ending:?}-{n}");

            send(app.clone(), Some(&key)).await;
            let again = send(app, Some(&key)).await;

            assert_eq!(again, (201, false, "run 2".into()), "{ending:?}");
        }
    }
}

async fn of_many_at_once_one_commits<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let (app, _) = app(&fixture, Ending::Seals);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let app = app.clone();
        clients.spawn(async move { send(app, Some("k")).await });
    }
    let answers = clients.join_all().await;

    assert!(answers.iter().all(|(status, ..)| [201, 409].contains(status)), "{answers:?}");
    assert_eq!(answers.iter().filter(|(status, is_replay, _)| *status == 201 && !is_replay).count(), 1);
    assert_eq!(committed(&*fixture).await, (1, 1));
}

/// Who has all the keys it may have gets no more, and keeps what it has.
async fn a_caller_has_only_so_many_keys<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let policy = Policy { max_keys: Some(3), ..Policy::default() };
    let layer = Gate::new(fixture.store()).policy(policy.clone()).unwrap().unscoped();
    let layered = Router::new().route("/", post(|| async { "done" })).layer(layer);
    let claimed =
        |tx: Claimed<F::Store>| async move { tx.seal(Response::new(Body::empty())).await.map(Body::new) };
    let gate = Gate::new(fixture.store())
        .policy(policy)
        .unwrap()
        .transactional()
        .scope(|_| Some(Caller { tenant: String::new(), principal: "another".into() }));
    let transactional = Router::new().route("/", post(claimed)).layer(gate);

    for app in [layered, transactional] {
        for n in 0..3 {
            assert_eq!(send(app.clone(), Some(&n.to_string())).await.0, 200);
        }
        let (status, _, body) = send(app.clone(), Some("3")).await;
        assert_eq!(status, 429, "{body}");
        assert!(body.contains("too-many-keys"), "{body}");
        assert!(send(app, Some("0")).await.1, "what it has is replayed");
    }
}

/// A copy of what was answered with a status, a place and a secret; with a body or without one.
async fn told_later(app: &Router, body: &'static str) -> (u16, Option<String>, String) {
    let request = || {
        let request = Request::post("/").header("idempotency-key", format!("k{body}"));
        request.body(Body::from(body)).unwrap()
    };
    let first = app.clone().call(request()).await.unwrap();
    assert_eq!((first.status().as_u16(), &first.headers()["x-secret"]), (201, &"secret".parse().unwrap()));
    assert_eq!(to_bytes(first.into_body(), 4096).await.unwrap(), body, "the first client gets all of it");
    copy(app, request()).await
}

async fn copy(app: &Router, request: Request<Body>) -> (u16, Option<String>, String) {
    let response = app.clone().call(request).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    assert!(!headers.contains_key("x-secret"), "{headers:?}");
    let location = headers.get("location").map(|place| place.to_str().unwrap().to_owned());
    let body = to_bytes(response.into_body(), 4096).await.unwrap();
    (status, location, String::from_utf8_lossy(&body).into_owned())
}

/// By the layer and in a claim, from the cache and from the store, also where the policy of another process would keep all.
async fn where_bodies_are_not_kept_a_copy_is_told_status_and_place<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let answer = move |body: Bytes| {
        counted.fetch_add(1, Ordering::SeqCst);
        (StatusCode::CREATED, [("location", "/orders/1"), ("x-secret", "secret")], body).into_response()
    };
    let plain = answer.clone();
    let layered = move |body: Bytes| async move { plain(body) };
    let claimed =
        |tx: Claimed<F::Store>, body: Bytes| async move { tx.seal(answer(body)).await.map(Body::new) };
    let policy = Policy { keep_bodies: false, ..Policy::default() };
    let gate = |secret: &[u8]| Gate::new(fixture.store()).secret(secret).policy(policy.clone()).unwrap();
    let place = Some("/orders/1".to_owned());

    for (secret, app) in [
        (b"layer", Router::new().route("/", post(layered)).layer(gate(b"layer").unscoped())),
        (b"claim", Router::new().route("/", post(claimed)).layer(gate(b"claim").transactional().unscoped())),
    ] {
        runs.store(0, Ordering::SeqCst);
        let elsewhere = Router::new()
            .route("/", post(|| async { "run" }))
            .layer(Gate::new(fixture.store()).secret(secret).unscoped());
        assert_eq!(told_later(&app, "").await, (201, place.clone(), String::new()), "nothing is missing");
        let copies = [
            told_later(&app, "body").await,
            copy(
                &elsewhere,
                Request::post("/").header("idempotency-key", "kbody").body("body".into()).unwrap(),
            )
            .await,
        ];
        for (status, location, problem) in copies {
            assert_eq!((status, &location), (409, &place), "{problem}");
            assert!(problem.contains("response-not-retained") && problem.contains("201"), "{problem}");
            assert!(!problem.contains("too large"), "{problem}");
        }
        assert_eq!(runs.load(Ordering::SeqCst), 2, "each once");
    }
}

async fn a_copy_of_a_claim_may_wait<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (at, on) = (Arc::clone(&entered), Arc::clone(&go));
    let slow = |tx: Claimed<F::Store>| async move {
        at.notify_one();
        on.notified().await;
        tx.seal(Response::new(Body::from("done"))).await.map(Body::new)
    };
    let policy = Policy { in_flight: InFlight::Wait(Duration::from_secs(30)), ..Policy::default() };
    let gate = Gate::new(fixture.store()).policy(policy).unwrap().transactional().unscoped();
    let app = Router::new().route("/", post(slow)).layer(gate);

    let first = tokio::spawn(send(app.clone(), Some("k")));
    entered.notified().await;
    let copy = tokio::spawn(send(app, Some("k")));
    tokio::task::yield_now().await;
    go.notify_one();

    assert_eq!(first.await.unwrap(), (200, false, "done".into()));
    assert_eq!(copy.await.unwrap(), (200, true, "done".into()));
}

async fn another_request_may_be_let_in_beside_a_claim<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let strategy = Strategy::WarnButAllow;
    let policy = Policy { strategy, allow_unsafe_strategies: true, ..Policy::default() };
    let gate = Gate::new(fixture.store()).policy(policy).unwrap().transactional().unscoped();
    let service =
        Arc::new(Service { fixture: Arc::clone(&fixture), runs: AtomicUsize::new(0), ending: Ending::Seals });
    let mut app: Router = Router::new().route("/", post(place::<F>)).with_state(service).layer(gate);
    let other = Request::post("/").header("idempotency-key", "k").body(Body::from("another")).unwrap();

    let first = send(app.clone(), Some("k")).await;
    let other = app.call(other).await.unwrap();

    assert_eq!(other.status(), 201);
    assert_eq!(other.headers().get("idempotency-conflict").unwrap(), "allowed");
    assert_eq!(send(app, Some("k")).await, (201, true, first.2), "the first reply stays");
    assert_eq!(committed(&*fixture).await, (2, 2), "both took effect");
}

/// A gate that forgets soon.
const HASTY: Duration = Duration::from_millis(1_500);

fn hasty() -> Policy {
    Policy { lease: Duration::from_secs(1), ttl: HASTY, ..Policy::default() }
}

async fn a_key_may_be_refused_after_its_time<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let policy = Policy { refuse_expired: Some(Duration::from_secs(3600)), ..hasty() };
    let gate = Gate::new(fixture.store()).policy(policy).unwrap().unscoped();
    let app = Router::new().route("/", post(|| async { "done" })).layer(gate);

    assert_eq!(send(app.clone(), Some("k")).await, (200, false, "done".into()));
    let refused = async {
        loop {
            let answer = send(app.clone(), Some("k")).await;
            if answer != (200, true, "done".into()) {
                break answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(30), refused).await.expect("it expires");

    assert_eq!(refused.0, 422, "{refused:?}");
    assert!(refused.2.contains("idempotency-key-expired"), "{refused:?}");
}

/// What is over makes room, also for a process that has let nobody in yet.
async fn a_caller_with_old_keys_gets_new_ones_from_another_process<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let policy = Policy { max_keys: Some(1), ..hasty() };
    let process = || {
        let gate = Gate::new(fixture.store()).policy(policy.clone()).unwrap();
        let gate = gate.sweep_every(Duration::from_millis(100)).unscoped();
        Router::new().route("/", post(|| async { "done" })).layer(gate)
    };
    assert_eq!(send(process(), Some("old")).await.0, 200);

    let app = process();
    assert_eq!(send(app.clone(), Some("new")).await.0, 429);
    let let_in = async {
        while send(app.clone(), Some("new")).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };

    tokio::time::timeout(Duration::from_secs(30), let_in).await.expect("the old key is swept");
}

/// Without anybody asking for it.
async fn what_is_over_is_swept<F>(fixture: Arc<F>)
where
    F: StoreFixture<Store: Receipts + Mailbox>,
{
    let caller = Caller { tenant: String::new(), principal: String::new() };
    let key = RequestKey::parse([&b"k"[..]], KeySyntax::Lenient).unwrap().unwrap();
    let scope = KeyMaker::new(b"").make(&caller, "", &key).scope;
    let gate = Gate::new(fixture.store()).policy(hasty()).unwrap();
    let gate = gate.sweep_every(Duration::from_millis(100)).unscoped();
    let app = Router::new().route("/", post(|| async { "done" })).layer(gate);

    assert_eq!(send(app.clone(), Some("k")).await.0, 200);
    let kept = async || fixture.store().count(&scope, 10).await.unwrap();
    assert_eq!(kept().await, 1);
    let gone = async {
        while kept().await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("it is deleted");
    drop(app); // Until here: who sweeps ends with its gate.
}

macro_rules! on_every_store {
    ($($case:ident)*) => {$(
        mod $case {
            #[test]
            fn in_memory() {
                super::on_store::<super::MemoryFixture, _, _>(super::$case);
            }

            #[test]
            fn on_sqlite() {
                super::on_store::<super::SqliteFixture, _, _>(super::$case);
            }

            #[test]
            fn on_postgres() {
                super::on_store::<super::PostgresFixture, _, _>(super::$case);
            }
        }
    )*};
}

on_every_store! {
    a_reply_is_committed_with_its_effects
    without_a_seal_nothing_has_happened
    a_key_is_free_before_its_client_is_told
    of_many_at_once_one_commits
    a_caller_has_only_so_many_keys
    where_bodies_are_not_kept_a_copy_is_told_status_and_place
    a_copy_of_a_claim_may_wait
    another_request_may_be_let_in_beside_a_claim
    a_key_may_be_refused_after_its_time
    what_is_over_is_swept
    a_caller_with_old_keys_gets_new_ones_from_another_process
}

/// When the lease of the only receipt ends, in seconds.
async fn lease_end(fixture: &PostgresFixture) -> f64 {
    let text = format!("SELECT extract(epoch FROM lease_until)::float8 FROM {}.receipt", fixture.place().1);
    let store = fixture.store();
    sqlx::query_scalar(sqlx::AssertSqlSafe(text)).fetch_one(store.pool()).await.unwrap()
}

/// Handlers that use up the pool must not cost their own leases.
#[test]
fn a_starved_pool_costs_no_lease_on_postgres() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (url, schema) = fixture.place();
        let pool = oncebox_stores::postgres::pool_options().max_connections(1).connect(&url).await.unwrap();
        let store = PostgresStore::new(pool.clone()).schema(oncebox::Identifier::new(schema).unwrap());
        let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (at, on) = (Arc::clone(&entered), Arc::clone(&go));
        let hog = move || async move {
            let _all_there_is = pool.acquire().await.unwrap();
            at.notify_one();
            on.notified().await;
            "done"
        };
        let policy = Policy { lease: Duration::from_secs(3), ..Policy::default() };
        let gate = Gate::new(store).policy(policy.clone()).unwrap().unscoped();
        let app = Router::new().route("/", post(hog)).layer(gate);
        let other = Gate::new(fixture.store()).policy(policy).unwrap().unscoped();
        let other = Router::new().route("/", post(|| async { "again" })).layer(other);

        let running = tokio::spawn(send(app, Some("k")));
        entered.notified().await;
        let admitted = lease_end(&fixture).await;
        let renewed = async { while lease_end(&fixture).await == admitted {} };
        tokio::time::timeout(Duration::from_secs(30), renewed).await.expect("its lease is renewed");
        let copy = send(other, Some("k")).await;
        go.notify_one();

        assert_eq!(copy.0, 409, "it still runs: {copy:?}");
        assert_eq!(running.await.unwrap(), (200, false, "done".into()));
    });
}

/// A database that nobody answers for.
fn down() -> PostgresStore {
    let options = oncebox_stores::postgres::pool_options().acquire_timeout(Duration::from_millis(200));
    let pool: PgPool = options.connect_lazy("postgres://nobody@127.0.0.1:1/nothing").unwrap();
    PostgresStore::new(pool)
}

async fn with_store_down(policy: Policy) -> ((u16, Option<String>), usize) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        StatusCode::CREATED
    };
    let gate = Gate::new(down()).policy(policy).unwrap().unscoped();
    let mut app: Router = Router::new().route("/", post(handler)).layer(gate);
    let request = Request::post("/").header("idempotency-key", "k").body(Body::empty()).unwrap();
    let response = app.call(request).await.unwrap();
    let mark = response.headers().get("idempotency-status").map(|mark| mark.to_str().unwrap().to_owned());
    ((response.status().as_u16(), mark), runs.load(Ordering::SeqCst))
}

#[tokio::test]
async fn without_its_store_a_gate_is_closed_unless_it_is_told_to_be_open() {
    let closed = with_store_down(Policy::default()).await;
    let open = with_store_down(Policy { fail_open: true, ..Policy::default() }).await;

    assert_eq!(closed, ((503, None), 0));
    assert_eq!(open, ((201, Some("unprotected".into())), 1));
}

#[tokio::test]
async fn a_handler_derives_stable_keys_for_what_it_calls() {
    let handler =
        |key: IdempotencyKey| async move { format!("{} {}", key.key.as_str(), key.derive("charge")) };
    let gate = || Gate::new(oncebox::memory::MemoryStore::new()).secret(b"s").unscoped();
    let app = || Router::new().route("/", post(handler)).layer(gate());

    let (first, again) = (send(app(), Some("k")).await.2, send(app(), Some("k")).await.2);

    assert_eq!(first, again, "another process, the same keys");
    assert!(first.starts_with("k ") && first.len() == 34, "{first}");
    assert_ne!(first, send(app(), Some("l")).await.2.replacen('l', "k", 1));
}

/// What a message that is put while this request runs inherits.
async fn inherited(headers: &[(&str, &str)]) -> [Option<String>; 3] {
    let handler = || async {
        let mut envelope = Envelope { kind: "order.placed.v1".into(), ..Envelope::default() };
        oncebox::gate::carry(&mut envelope);
        let parts = [envelope.correlation_id, envelope.idempotency_key, envelope.traceparent];
        serde_json::to_string(&parts).unwrap()
    };
    let gate = Gate::new(oncebox::memory::MemoryStore::new()).secret(b"s").unscoped();
    let mut app: Router = Router::new().route("/", post(handler)).layer(gate);
    let request =
        headers.iter().fold(Request::post("/"), |request, (name, value)| request.header(*name, *value));
    let response = app.call(request.body(Body::empty()).unwrap()).await.unwrap();
    serde_json::from_slice(&to_bytes(response.into_body(), 4096).await.unwrap()).unwrap()
}

#[tokio::test]
async fn messages_inherit_from_the_request_they_are_put_in() {
    let key = ("idempotency-key", "k");

    let [correlation, own_key, trace] = inherited(&[key]).await;
    assert_eq!(
        inherited(&[key]).await,
        [correlation.clone(), own_key.clone(), None],
        "the same in another process"
    );
    assert!(correlation.is_some() && own_key.is_some() && correlation != own_key && trace.is_none());

    let [given, same_key, trace] =
        inherited(&[key, ("x-correlation-id", "c-1"), ("traceparent", "00-1")]).await;
    assert_eq!((given.as_deref(), trace.as_deref()), (Some("c-1"), Some("00-1")));
    assert_eq!(same_key, own_key);
    assert_eq!(inherited(&[]).await, [None, None, None], "without a key there is nothing to inherit");
}

#[tokio::test]
async fn a_full_memory_forgets_what_is_over_and_never_what_runs() {
    let store = oncebox::memory::MemoryStore::new().receipt_capacity(200_000);
    let (waiting, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (at, on) = (Arc::clone(&waiting), Arc::clone(&go));
    let slow = move || async move {
        at.notify_one();
        on.notified().await;
        "slow"
    };
    let gate = Gate::new(store).unscoped();
    let app = Router::new().route("/", post(|| async { "quick" })).route("/slow", post(slow)).layer(gate);
    let running = {
        let mut app = app.clone();
        let request = Request::post("/slow").header("idempotency-key", "slow").body(Body::empty()).unwrap();
        tokio::spawn(async move { app.call(request).await.unwrap().status() })
    };
    waiting.notified().await;
    for n in 0..2_000 {
        assert_eq!(send(app.clone(), Some(&format!("k{n}"))).await.0, 200);
    }

    let mut again = app.clone();
    let request = Request::post("/slow").header("idempotency-key", "slow").body(Body::empty()).unwrap();
    assert_eq!(again.call(request).await.unwrap().status(), 409, "it still runs");
    assert!(send(app.clone(), Some("k1999")).await.1, "the latest is there");
    assert!(!send(app, Some("k0")).await.1, "the first is gone");
    go.notify_one();
    assert_eq!(running.await.unwrap(), 200);
}
