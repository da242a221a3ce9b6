//! Replies that a process replays without asking its store. The store is taken
//! away to tell.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use oncebox::Identifier;
use oncebox::gate::{Claimed, Gate, GateBuilder, Policy, Receipts, Strategy};
use oncebox::stores::{postgres::PostgresStore, sqlite::SqliteStore};
use oncebox_conformance::run::on_store;
use tower_service::Service as _;

use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground as _;

/// One process: a gate of its own in front of a service that counts.
fn process<S: Receipts>(gate: GateBuilder<S>, runs: &Arc<AtomicUsize>) -> Router {
    let runs = Arc::clone(runs);
    let handler = move || async move {
        let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
        (StatusCode::CREATED, [("location", "/orders/1")], format!("run {run}")).into_response()
    };
    Router::new().route("/", post(handler)).layer(gate.unscoped())
}

/// As above, with a handler that seals in its own transaction.
fn transactional<S: Receipts>(gate: GateBuilder<S>) -> Router {
    let handler =
        |tx: Claimed<S>| async move { tx.seal(Response::new(Body::from("sealed"))).await.map(Body::new) };
    Router::new().route("/", post(handler)).layer(gate.transactional().unscoped())
}

async fn send(app: &Router, key: &str, body: &'static str) -> (u16, bool, String) {
    let request = Request::post("/").header("idempotency-key", key).body(Body::from(body)).unwrap();
    let response = app.clone().call(request).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, headers.contains_key("idempotent-replayed"), String::from_utf8_lossy(&body).into_owned())
}

async fn a_sealed_reply_needs_no_store<S: Receipts>(store: S, take_away: impl Future<Output = ()>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let [first, second] = [(); 2].map(|()| process(Gate::new(store.clone()), &runs));
    let forgetful = process(Gate::new(store.clone()).cache(0), &runs);
    let sealing = transactional(Gate::new(store));
    assert_eq!(send(&first, "k", "{}").await, (201, false, "run 1".into()));
    assert_eq!(send(&second, "k", "{}").await, (201, true, "run 1".into()), "it has asked the store");
    assert_eq!(send(&forgetful, "k", "{}").await, (201, true, "run 1".into()));
    assert_eq!(send(&sealing, "s", "{}").await, (200, false, "sealed".into()));

    take_away.await;

    for app in [&first, &second] {
        assert_eq!(send(app, "k", "{}").await, (201, true, "run 1".into()));
        assert_eq!(send(app, "k", "{\"a\":1}").await.0, 422, "another request under the key");
        assert_eq!(send(app, "other", "{}").await.0, 503, "what is not known is asked for");
    }
    assert_eq!(send(&sealing, "s", "{}").await, (200, true, "sealed".into()));
    assert_eq!(send(&forgetful, "k", "{}").await.0, 503, "without a cache it must ask");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn a_sealed_reply_needs_no_store_on_sqlite() {
    on_store::<SqliteFixture, _, _>(|fixture| async move {
        let (url, prefix) = fixture.place();
        let store = SqliteStore::connect(&url).await.unwrap().prefix(Identifier::new(prefix).unwrap());
        let pool = store.pool().clone();
        a_sealed_reply_needs_no_store(store, async move { pool.close().await }).await;
    });
}

#[test]
fn a_sealed_reply_needs_no_store_on_postgres() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (url, schema) = fixture.place();
        let store = PostgresStore::connect(&url).await.unwrap().schema(Identifier::new(schema).unwrap());
        let pool = store.pool().clone();
        a_sealed_reply_needs_no_store(store, async move { pool.close().await }).await;
    });
}

/// What is known without asking is no more than what was kept.
#[test]
fn where_bodies_are_not_kept_none_is_known_either() {
    on_store::<SqliteFixture, _, _>(|fixture| async move {
        let (url, prefix) = fixture.place();
        let store = SqliteStore::connect(&url).await.unwrap().prefix(Identifier::new(prefix).unwrap());
        let policy = Policy { keep_bodies: false, ..Policy::default() };
        let gate = || Gate::new(store.clone()).policy(policy.clone()).unwrap();
        let (layered, sealing) = (process(gate(), &Arc::default()), transactional(gate()));
        assert_eq!(send(&layered, "k", "{}").await, (201, false, "run 1".into()));
        assert_eq!(send(&sealing, "s", "{}").await, (200, false, "sealed".into()));

        store.pool().close().await;

        for (app, key) in [(layered, "k"), (sealing, "s")] {
            let (status, is_replay, problem) = send(&app, key, "{}").await;
            assert_eq!((status, is_replay), (409, false), "{problem}");
            assert!(problem.contains("response-not-retained"), "{problem}");
        }
    });
}

#[test]
fn a_known_reply_is_over_when_its_receipt_is() {
    on_store::<SqliteFixture, _, _>(|fixture| async move {
        let policy =
            Policy { lease: Duration::from_secs(1), ttl: Duration::from_secs(3), ..Policy::default() };
        let app = process(Gate::new(fixture.store.clone()).policy(policy).unwrap(), &Arc::default());
        assert_eq!(send(&app, "k", "{}").await, (201, false, "run 1".into()));
        assert_eq!(send(&app, "k", "{}").await, (201, true, "run 1".into()));

        let until_over = async {
            loop {
                match send(&app, "k", "{}").await {
                    (201, true, known) => assert_eq!(known, "run 1"),
                    other => return other,
                }
                tokio::task::yield_now().await;
            }
        };
        let other = tokio::time::timeout(Duration::from_secs(30), until_over).await.expect("it ends");
        assert_eq!(other, (201, false, "run 2".into()));
    });
}

#[test]
fn where_the_last_write_wins_nothing_is_taken_for_known() {
    on_store::<SqliteFixture, _, _>(|fixture| async move {
        let bold =
            Policy { strategy: Strategy::LastWriteWins, allow_unsafe_strategies: true, ..Policy::default() };
        let runs = Arc::new(AtomicUsize::new(0));
        let [here, there] =
            [(); 2].map(|()| process(Gate::new(fixture.store.clone()).policy(bold.clone()).unwrap(), &runs));

        assert_eq!(send(&here, "k", "{}").await, (201, false, "run 1".into()));
        assert_eq!(send(&there, "k", "{\"a\":1}").await, (201, false, "run 2".into()));

        assert_eq!(send(&here, "k", "{\"a\":1}").await, (201, true, "run 2".into()));
    });
}
