//! What a policy says, as a client sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::{any, post};
use oncebox::Digest;
use oncebox::gate::keys::{atp_of_content, of_content};
use oncebox::gate::{
    Caller, Claimed, Durability, Gate, IdempotencyKey, KeySyntax, OnDoubt, Policy, Profile, Store, Strategy,
    Untouched,
};
use oncebox::memory::MemoryStore;
use oncebox_conformance::StoreFixture as _;
use oncebox_conformance::run::on_store;
use serde_json::Value;
use tower_service::Service as _;

use crate::conformance::postgres::PostgresFixture;
use crate::crash_points::ground::Ground as _;

/// A service that answers with this status, and counts.
fn app(policy: Policy, answer: StatusCode) -> (Router, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move || async move {
        let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
        (answer, [("idempotency-store", "maybe")], format!("run {run}"))
    };
    let gate = Gate::new(MemoryStore::new()).policy(policy).unwrap().unscoped();
    (Router::new().fallback(any(handler)).layer(gate), runs)
}

struct Sent<'a> {
    method: Method,
    path: &'a str,
    key: Option<&'a str>,
    body: &'a [u8],
}

const ORDER: Sent<'static> = Sent { method: Method::POST, path: "/", key: Some("k"), body: b"{\"a\":1}" };

async fn send(app: &Router, sent: Sent<'_>) -> Response<Body> {
    let request = Request::builder().method(sent.method).uri(sent.path);
    let request = request.header("content-type", "application/json");
    let request = match sent.key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    app.clone().call(request.body(Body::from(sent.body.to_vec())).unwrap()).await.unwrap()
}

async fn status(app: &Router, sent: Sent<'_>) -> u16 {
    send(app, sent).await.status().as_u16()
}

async fn problem(response: Response<Body>) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    serde_json::from_slice(&to_bytes(response.into_body(), 4096).await.unwrap()).unwrap()
}

#[tokio::test]
async fn which_replies_are_kept_is_for_the_policy_to_say() {
    let only_teapots = Store::Custom(Arc::new(|status| status == StatusCode::IM_A_TEAPOT));
    let cases = [
        (Store::Final, 500, 2),
        (Store::All, 500, 1),
        (Store::Success, 404, 2),
        (only_teapots.clone(), 418, 1),
        (only_teapots, 200, 2),
    ];
    for (store, answer, runs) in cases {
        let case = format!("{store:?} {answer}");
        let (app, ran) = app(Policy { store, ..Policy::default() }, StatusCode::from_u16(answer).unwrap());

        assert_eq!([status(&app, ORDER).await, status(&app, ORDER).await], [answer; 2], "{case}");
        assert_eq!(ran.load(Ordering::SeqCst), runs, "{case}");
    }
}

#[tokio::test]
async fn what_had_no_effect_is_not_kept_whatever_is() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move || async move {
        let mut response = StatusCode::BAD_GATEWAY.into_response();
        if counted.fetch_add(1, Ordering::SeqCst) > 0 {
            return StatusCode::CREATED.into_response();
        }
        response.extensions_mut().insert(Untouched);
        response
    };
    for on_doubt in [OnDoubt::Retry, OnDoubt::Block] {
        runs.store(0, Ordering::SeqCst);
        let policy = Policy { store: Store::All, on_doubt, ..Policy::default() };
        let gate = Gate::new(MemoryStore::new()).policy(policy).unwrap().unscoped();
        let app = Router::new().route("/", post(handler.clone())).layer(gate);

        assert_eq!([status(&app, ORDER).await, status(&app, ORDER).await], [502, 201], "{on_doubt:?}");
    }
}

#[tokio::test]
async fn what_a_handler_says_to_the_gate_no_client_hears() {
    let (app, _) = app(Policy::default(), StatusCode::OK);
    for sent in [Sent { key: None, ..ORDER }, Sent { method: Method::GET, ..ORDER }, ORDER, ORDER] {
        assert!(!send(&app, sent).await.headers().contains_key("idempotency-store"));
    }
}

/// By whichever name: a client that sends it is not heard, and what a handler says by it is not kept.
#[tokio::test]
async fn replays_are_marked_by_the_header_of_the_policy_and_by_no_other() {
    let echo = |headers: HeaderMap| async move {
        let heard = ["x-hit", "idempotent-replayed"].map(|name| headers.contains_key(name));
        ([("x-hit", "of the handler")], format!("{heard:?}"))
    };
    let claims = move |headers: HeaderMap, tx: Claimed<MemoryStore>| async move {
        tx.seal(echo(headers).await.into_response()).await.map(Body::new)
    };
    let policy = Policy { replay_header: HeaderName::from_static("x-hit"), ..Policy::default() };
    let gate = || Gate::new(MemoryStore::new()).policy(policy.clone()).unwrap();
    let layered = Router::new().route("/", post(echo)).layer(gate().unscoped());
    let claimed = Router::new().route("/", post(claims)).layer(gate().transactional().unscoped());

    for app in [layered, claimed] {
        let order = || {
            let order = Request::post("/").header("idempotency-key", "k").header("x-hit", "true");
            order.header("idempotent-replayed", "true").body(Body::empty()).unwrap()
        };
        let first = app.clone().call(order()).await.unwrap();
        let again = app.clone().call(order()).await.unwrap();

        assert_ne!(first.headers()["x-hit"], "true");
        assert_eq!(again.headers().get_all("x-hit").iter().collect::<Vec<_>>(), ["true"]);
        assert!(!again.headers().contains_key("idempotent-replayed"));
        let heard = to_bytes(again.into_body(), 4096).await.unwrap();
        assert_eq!(heard, "[false, false]", "what only the gate says nobody says to the handler");
    }
}

#[tokio::test]
async fn a_run_that_was_cut_off_may_be_tried_again_only_where_it_may_run_again() {
    for (on_doubt, is_retryable, then) in [(OnDoubt::Retry, true, 500), (OnDoubt::Block, false, 409)] {
        let policy = Policy { on_doubt, docs: Some("https://docs.example/keys".into()), ..Policy::default() };
        let gate = Gate::new(MemoryStore::new()).policy(policy).unwrap().unscoped();
        let panics = || async { panic!("in the middle") };
        let app = Router::new().route("/", post(async move || -> StatusCode { panics().await })).layer(gate);

        let first = send(&app, ORDER).await;
        assert_eq!(first.headers()["link"], "<https://docs.example/keys>; rel=\"describedby\"");
        assert_eq!(first.headers()["content-language"], "en");
        let first = problem(first).await;
        assert_eq!((&first["status"], &first["retryable"]), (&500.into(), &is_retryable.into()), "{first}");
        assert_eq!(status(&app, ORDER).await, then, "{on_doubt:?}");
    }
}

#[tokio::test]
async fn routes_may_have_keys_of_their_own_and_insist_on_quotes() {
    let (shared, _) = app(Policy::default(), StatusCode::OK);
    let (apart, runs) = app(Policy { key_per_route: true, ..Policy::default() }, StatusCode::OK);
    let (quoted, _) =
        app(Policy { key_syntax: KeySyntax::QuotedString, ..Policy::default() }, StatusCode::OK);
    let elsewhere = || Sent { path: "/elsewhere", ..ORDER };

    assert_eq!([status(&shared, ORDER).await, status(&shared, elsewhere()).await], [200, 422]);
    assert_eq!([status(&apart, ORDER).await, status(&apart, elsewhere()).await], [200, 200]);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(status(&quoted, Sent { key: Some("\"k\""), ..ORDER }).await, 200);
    assert_eq!(status(&quoted, ORDER).await, 400);
}

#[tokio::test]
async fn what_a_pointer_leads_to_may_differ_and_nothing_else() {
    let excluded = ["/meta/traceId", "/items/0/at", "/path~1to"].map(str::to_owned).to_vec();
    let (app, runs) = app(Policy { excluded, ..Policy::default() }, StatusCode::OK);
    let first = br#"{"meta":{"traceId":1,"user":1},"items":[{"at":1},{"at":1}],"path/to":1}"#;
    let cases: [(&[u8], u16); 5] = [
        (br#"{"items":[{"at":2},{"at":1}],"meta":{"user":1,"traceId":{"a":2}},"path/to":2}"#, 200),
        (br#"{"meta":{"user":1},"items":[{},{"at":1}]}"#, 200),
        (br#"{"meta":{"traceId":1,"user":1},"items":[{"at":1},{"at":2}],"path/to":1}"#, 422),
        (br#"{"meta":{"traceid":1,"user":1},"items":[{"at":1},{"at":1}]}"#, 422),
        (br#"{"meta":{"traceId":1,"user":2},"items":[{"at":1},{"at":1}]}"#, 422),
    ];

    assert_eq!(status(&app, Sent { body: first, ..ORDER }).await, 200);
    for (body, expected) in cases {
        let text = String::from_utf8_lossy(body);
        assert_eq!(status(&app, Sent { body, ..ORDER }).await, expected, "{text}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_key_of_a_content_is_that_of_the_body_however_its_json_is_written() {
    let body = br#"{ "b": 1, "a": 2 }"#;
    let of_the_bytes = format!("content:{}", Digest::of(body));
    let content = Policy { strategy: Strategy::ContentBased, ..Policy::default() };
    let atp = Policy { strategy: Strategy::ContentBased, ..Policy::of(Profile::Atp) };
    let (content, _) = app(content, StatusCode::OK);
    let (atp, _) = app(atp, StatusCode::OK);
    let wrong = of_content(b"another");
    let cases = [
        (&content, of_content(body), 200),
        (&content, of_content(br#"{"a":2,"b":1}"#), 200),
        (&content, of_the_bytes, 200),
        (&content, wrong.clone(), 400),
        (&content, "any other key".into(), 200),
        (&atp, atp_of_content("acme", body), 200),
        (&atp, format!("acme:{wrong}"), 400),
    ];
    for (app, key, expected) in cases {
        assert_eq!(status(app, Sent { key: Some(&key), body, ..ORDER }).await, expected, "{key}");
    }
}

#[tokio::test]
async fn the_other_profile_has_its_own_codes_and_takes_keys_of_a_delete() {
    let (app, runs) = app(Policy::of(Profile::Atp), StatusCode::OK);
    let order = || Sent { key: Some("acme:shop:1"), ..ORDER };

    assert_eq!(
        problem(send(&app, Sent { key: None, ..ORDER }).await).await["code"],
        "IdempotencyKeyRequired"
    );
    assert_eq!(status(&app, order()).await, 200);
    let conflict = problem(send(&app, Sent { body: b"{}", ..order() }).await).await;
    assert_eq!((&conflict["status"], &conflict["code"]), (&409.into(), &"IdempotencyConflict".into()));

    let delete = || Sent { method: Method::DELETE, key: Some("acme:shop:2"), ..ORDER };
    assert_eq!([status(&app, delete()).await, status(&app, delete()).await], [200, 200]);
    assert_eq!(status(&app, Sent { key: None, ..delete() }).await, 200, "not required");
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_handler_that_needs_a_key_refuses_as_the_gate_does() {
    let gate = || Gate::new(MemoryStore::new());
    let key = Router::new()
        .route("/", post(|key: IdempotencyKey| async move { key.key.as_str().to_owned() }))
        .layer(gate().unscoped());
    let claims =
        |tx: Claimed<MemoryStore>| async move { tx.seal(Response::new(Body::empty())).await.map(Body::new) };
    let claim = Router::new().route("/", post(claims)).layer(gate().transactional().unscoped());

    for app in [key, claim] {
        let refused = problem(send(&app, Sent { key: None, ..ORDER }).await).await;
        assert_eq!(refused["code"], "idempotency-key-missing");
        assert_eq!(status(&app, ORDER).await, 200);
    }
}

#[tokio::test]
async fn a_caller_may_be_known_by_the_header_that_marks_replays() {
    let policy = Policy { replay_header: HeaderName::from_static("x-user"), ..Policy::default() };
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |headers: HeaderMap| async move {
        assert!(!headers.contains_key("x-user"), "nobody is told who did not ask for it");
        counted.fetch_add(1, Ordering::SeqCst);
    };
    let gate = Gate::new(MemoryStore::new()).policy(policy).unwrap().scope(|request| {
        let user = request.headers.get("x-user").and_then(|user| user.to_str().ok());
        Some(Caller { tenant: String::new(), principal: user.unwrap_or_default().to_owned() })
    });
    let app = Router::new().route("/", post(handler)).layer(gate);

    for (user, is_replay) in [("anna", false), ("ben", false), ("anna", true)] {
        let request = Request::post("/").header("x-user", user).header("idempotency-key", "k");
        let response = app.clone().call(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.headers().contains_key("x-user"), is_replay, "{user}");
    }

    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[test]
fn a_policy_decides_whether_an_admission_waits_for_the_disk_on_postgres() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (store, schema) = (fixture.store(), fixture.place().1);
        let note = format!(
            "CREATE TABLE {schema}.seen (number serial, setting text);
             CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN
                 INSERT INTO {schema}.seen (setting) VALUES (current_setting('synchronous_commit'));
                 RETURN NEW;
             END$$;
             CREATE TRIGGER note BEFORE INSERT OR UPDATE ON {schema}.receipt
             FOR EACH ROW EXECUTE FUNCTION {schema}.note()"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(note)).execute(store.pool()).await.unwrap();
        let usual: String =
            sqlx::query_scalar("SHOW synchronous_commit").fetch_one(store.pool()).await.unwrap();

        for (reserve_durability, key) in [(Durability::Relaxed, "relaxed"), (Durability::Full, "full")] {
            let policy = Policy { reserve_durability, ..Policy::default() };
            let gate = Gate::new(fixture.store()).policy(policy).unwrap().unscoped();
            let app = Router::new().route("/", post(|| async { "done" })).layer(gate);
            assert_eq!(status(&app, Sent { key: Some(key), ..ORDER }).await, 200);
        }

        let text = sqlx::AssertSqlSafe(format!("SELECT setting FROM {schema}.seen ORDER BY number"));
        let seen: Vec<String> = sqlx::query_scalar(text).fetch_all(store.pool()).await.unwrap();
        assert_eq!(seen, ["off", &usual, &usual, &usual], "admitted and sealed, twice");
    });
}
