//! F06 commit-cut, under the gate: the proxy swallows the COMMIT of a claimed
//! request or its answer, and, where the gate admits and seals by itself, those
//! statements or their answers. The client takes the gate at its word: told
//! that nothing was done, it makes a new request; told that nobody knows, it
//! asks again. Each operation has one effect, and its reply stays the same.
//!
//! Sabotage: a store that takes a broken COMMIT for a rollback, so that the
//! gate says that nothing was done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use oncebox::gate::{Claimed, Excluded, Fingerprint, Gate, KeyMaker, Receipts};
use oncebox::{Dedup, Identifier, Store as _};
use oncebox_conformance::proxy::{Cut, Proxy, Sender};
use oncebox_conformance::run::on_store;
use oncebox_conformance::{Entry, Findings, Ledger, StoreFixture as _};
use oncebox_stores::postgres::{PostgresStore, pool_options};
use sqlx::PgConnection;
use tower_service::Service as _;

use super::f06_commit_cut::{SABOTAGED_CUTS, behind_a_proxy, cut, cuts, proxied};
use super::sabotaged::{Mode, Sabotaged};
use crate::conformance::postgres::PostgresFixture;

/// What the server says when it has admitted (a row of eight, of which the first is true and the second nothing),
/// and when it has sealed.
const ADMITTED: &[u8] = b"\0\x08\0\0\0\x01\x01\xff\xff\xff\xff";
const SEALED: &[u8] = b"C\0\0\0\x0dUPDATE 1\0";
/// An operation is through by then, however often it was cut.
const PATIENCE: Duration = Duration::from_secs(20);

/// The body of a request is the name of its operation.
fn effect(operation: &str) -> Entry {
    Entry { handler: "gate".into(), id: operation.into(), key: None, sequence: 1, amount: 1 }
}

fn done(operation: &str) -> Response {
    (StatusCode::CREATED, format!("done {operation}")).into_response()
}

async fn claimed<S>(
    State(fixture): State<Arc<PostgresFixture>>,
    mut tx: Claimed<S>,
    operation: String,
) -> Response
where
    S: Receipts<Tx = PgConnection>,
{
    fixture.effect(&mut tx, &effect(&operation)).await.unwrap();
    tx.seal(done(&operation)).await.map(Body::new)
}

/// Over a connection that nobody cuts.
async fn apart(State(fixture): State<Arc<PostgresFixture>>, operation: String) -> Response {
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();
    fixture.effect(&mut tx, &effect(&operation)).await.unwrap();
    store.commit(tx).await.unwrap();
    done(&operation)
}

struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_str(&self.body).unwrap_or_default();
        problem["code"].as_str().unwrap_or_default().to_owned()
    }
}

async fn send(app: &Router, key: &str, operation: &str) -> Answer {
    let request = Request::post("/").header("idempotency-key", key).body(Body::from(operation.to_owned()));
    let response = app.clone().call(request.unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    Answer { status, body: String::from_utf8(body.to_vec()).unwrap() }
}

/// Brings an operation to its end; answers with the key it had at last, and how often it took another.
async fn insist(app: &Router, operation: &str) -> (String, usize) {
    let (patience, mut renewed) = (Instant::now() + PATIENCE, 0);
    loop {
        assert!(Instant::now() < patience, "{operation} does not come to its end");
        let key = format!("{operation}-{renewed}");
        let answer = send(app, &key, operation).await;
        match (answer.status, answer.code().as_str()) {
            (201, _) => return (key, renewed),
            // Nothing was done, it says.
            (503, "idempotency-unavailable") => renewed += 1,
            (503, "outcome-unknown") | (409, "operation-in-progress") => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => panic!("{operation}: {other:?}"),
        }
    }
}

#[derive(Debug)]
struct Report {
    findings: Findings,
    /// Operations whose copy did not get the same reply.
    torn: usize,
    /// How often a client was told that nothing was done.
    renewed: usize,
}

/// Makes each operation while what `cut` says is swallowed, and asks for its reply once more.
async fn run(
    app: &Router,
    fixture: &PostgresFixture,
    proxy: &Proxy,
    (cuts, cut): (i64, impl Fn(i64, &str) -> Cut),
) -> Report {
    let (mut committed, mut torn, mut renewed) = (Vec::new(), 0, 0);
    for number in 0..cuts {
        let operation = format!("operation-{number}");
        proxy.cut(cut(number, &operation));
        let (key, times) = insist(app, &operation).await;
        renewed += times;
        assert!(!proxy.spare(), "{operation} was not cut");
        let patience = Instant::now() + PATIENCE;
        let copy = loop {
            let copy = send(app, &key, &operation).await;
            // A reply that could not be kept at once is kept soon.
            if copy.status == 201 || Instant::now() > patience {
                break copy;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        torn += usize::from(copy.body != format!("done {operation}"));
        committed.push(effect(&operation));
    }
    Report { findings: Ledger::check(&committed, &fixture.effects().await), torn, renewed }
}

/// Handlers that claim and seal in their own transaction; no copy is answered by what the process knows.
fn claiming<S: Receipts<Tx = PgConnection>>(store: S, fixture: &Arc<PostgresFixture>) -> Router {
    let gate = Gate::new(store).cache(0).transactional().unscoped();
    Router::new().route("/", post(claimed::<S>)).with_state(Arc::clone(fixture)).layer(gate)
}

async fn claims<S>(
    store: S,
    fixture: &Arc<PostgresFixture>,
    proxy: &Proxy,
    (cuts, cut): (i64, fn(i64) -> Cut),
) -> Report
where
    S: Receipts<Tx = PgConnection> + Dedup,
{
    run(&claiming(store, fixture), fixture, proxy, (cuts, |number, _: &str| cut(number))).await
}

#[test]
fn a_commit_cut_under_a_claimed_request_is_resolved_and_nothing_is_done_twice() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, store) = behind_a_proxy(&fixture).await;

        let report = claims(store, &fixture, &proxy, (2 * cuts(), cut)).await;

        println!("F06 gate, claimed: {} cuts, {report:?}", proxy.cuts());
        assert_eq!(proxy.cuts(), usize::try_from(2 * cuts()).unwrap(), "every order to cut was met");
        assert_eq!(report.torn, 0);
        report.findings.assert_clean();
    });
}

/// On a connection that stands ready, seal and COMMIT are one message. Each cut ends such a connection, so requests
/// that nobody cuts come before the next one, until another stands ready.
#[test]
fn a_seal_that_is_cut_together_with_its_commit_is_resolved_and_nothing_is_done_twice() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, options) = proxied().await;
        let store = PostgresStore::with_pool(pool_options(), options);
        let store = store.schema(Identifier::new(&fixture.schema).unwrap());
        let app = claiming(store, &fixture);
        let (mut committed, mut torn, mut at_once) = (Vec::new(), 0, 0);
        for number in 0..cuts() {
            for warm in 0..8 {
                let operation = format!("warm-{number}-{warm}");
                insist(&app, &operation).await;
                committed.push(effect(&operation));
            }
            // Of a reply nothing but digits is sent on such a connection.
            let operation = format!("operation-{number}");
            let digits: String =
                format!("done {operation}").bytes().map(|byte| format!("{byte:02x}")).collect();
            let sealed = Cut { sender: Sender::Client, pattern: digits.into_bytes() };
            proxy.cut(if number % 2 == 0 { sealed } else { Cut::commit_reply() });
            let (key, _) = insist(&app, &operation).await;
            let is_met = !proxy.spare();
            // The answer to a COMMIT is the same wherever it was asked for.
            at_once += usize::from(is_met && number % 2 == 0);
            let copy = send(&app, &key, &operation).await;
            torn += usize::from(copy.body != format!("done {operation}"));
            committed.push(effect(&operation));
        }

        let findings = Ledger::check(&committed, &fixture.effects().await);
        println!("F06 gate, claimed at once: {} cuts, {at_once} under a seal, {findings}", proxy.cuts());
        assert_eq!(torn, 0);
        assert!(
            at_once * 3 >= usize::try_from(cuts()).unwrap(),
            "{at_once} of {}: half of them are under a seal",
            cuts()
        );
        findings.assert_clean();
    });
}

/// The statement itself, or the answer to it, in turns: first admissions, then seals.
fn statement(number: i64, operation: &str) -> Cut {
    let request = oncebox::gate::Request {
        method: "POST",
        path: "/",
        query: None,
        content_type: None,
        body: operation.as_bytes(),
    };
    let client = |pattern: &[u8]| Cut { sender: Sender::Client, pattern: pattern.to_vec() };
    let server = |pattern: &[u8]| Cut { sender: Sender::Server, pattern: pattern.to_vec() };
    match number % 4 {
        0 => client(KeyMaker::new(b"").print(&Fingerprint::of(&request, &Excluded::default())).as_bytes()),
        1 => server(ADMITTED),
        2 => client(format!("done {operation}").as_bytes()),
        _ => server(SEALED),
    }
}

/// Admissions and seals, each the statement or its answer, on handlers that know nothing of the gate.
async fn statements(store: PostgresStore, fixture: &Arc<PostgresFixture>, proxy: &Proxy) -> Report {
    let gate = Gate::new(store).cache(0).unscoped();
    let app = Router::new().route("/", post(apart)).with_state(Arc::clone(fixture)).layer(gate);
    let report = run(&app, fixture, proxy, (2 * cuts(), statement)).await;
    println!("F06 gate, layer: {} cuts, {report:?}", proxy.cuts());
    assert_eq!(proxy.cuts(), usize::try_from(2 * cuts()).unwrap(), "every order to cut was met");
    assert_eq!(report.torn, 0);
    report.findings.assert_clean();
    report
}

#[test]
fn an_admission_or_a_seal_that_is_cut_is_resolved_and_nothing_is_done_twice() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, store) = behind_a_proxy(&fixture).await;

        let report = statements(store, &fixture, &proxy).await;

        assert_eq!(report.renewed, usize::try_from(cuts()).unwrap(), "each lost admission");
    });
}

#[test]
fn an_admission_or_a_seal_that_is_cut_beside_the_pool_is_asked_for_again() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, options) = proxied().await;
        let store = PostgresStore::with_pool(pool_options(), options);
        let store = store.schema(Identifier::new(&fixture.schema).unwrap());

        let report = statements(store, &fixture, &proxy).await;

        // Also where it was new, as the very first is.
        assert_eq!(report.renewed, 0, "{report:?}");
    });
}

#[test]
fn a_key_whose_admission_got_lost_is_free_long_before_its_lease_is_over() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, store) = behind_a_proxy(&fixture).await;
        let gate = Gate::new(store).unscoped();
        let app = Router::new().route("/", post(apart)).with_state(Arc::clone(&fixture)).layer(gate);
        proxy.cut(Cut { sender: Sender::Server, pattern: ADMITTED.to_vec() });

        assert_eq!(send(&app, "k", "operation").await.code(), "idempotency-unavailable");
        assert_eq!(send(&app, "k", "operation").await.code(), "operation-in-progress", "the store let it in");
        let lost = Instant::now();
        while send(&app, "k", "operation").await.status != 201 {
            assert!(lost.elapsed() < Duration::from_secs(15), "half a lease");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }

        Ledger::check(&[effect("operation")], &fixture.effects().await).assert_clean();
    });
}

#[test]
fn sabotaged_a_gate_that_guesses_commits_says_that_nothing_was_done() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, store) = behind_a_proxy(&fixture).await;

        let sabotaged = Sabotaged::new(store, Mode::GuessCommits);
        let report = claims(sabotaged, &fixture, &proxy, (2 * SABOTAGED_CUTS, cut)).await;

        let doubled = usize::try_from(SABOTAGED_CUTS).unwrap();
        assert_eq!(report.findings.doubled.len(), doubled, "each lost answer: {report:?}");
    });
}
