//! F29 gate-torture: many clients send the same requests to a service behind
//! the gate that is killed over and over. Each request has one effect, every
//! client reads the same reply, and no key is stuck.
//!
//! Sabotage: the reply is kept outside of the transaction.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use oncebox::gate::{Claimed, Gate, IdempotencyKey, Policy, Receipts};
use oncebox::stores::{postgres::PostgresStore, sqlite::SqliteStore};
use oncebox::{Identifier, Store as _};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::run::on_store;
use oncebox_conformance::server::free_port;
use oncebox_conformance::size::sized;
use oncebox_conformance::{Entry, Findings, Ledger, StoreFixture};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground;

const CHILD: &str = "experiments::f29_gate_torture::a_gate_serves_until_it_is_killed";
const ORDERS: &str = "ONCEBOX_GATE_ORDERS";
const DATABASE: &str = "ONCEBOX_GATE_DATABASE";

fn keys() -> usize {
    sized(40, 10_000)
}

/// Clients that send each request.
fn clients() -> usize {
    sized(4, 32)
}

/// What the service of a test is told.
#[derive(Clone)]
struct Orders {
    database: String,
    schema: String,
    port: u16,
    /// The reply is kept after the commit.
    is_sabotaged: bool,
}

impl Orders {
    fn start(&self) -> Killed {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([CHILD, "--exact", "--test-threads=1"]).env(DATABASE, &self.database);
        child.env(ORDERS, format!("{} {} {}", self.schema, self.port, self.is_sabotaged));
        child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Killed(child.spawn().unwrap())
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn effect(key: &str) -> Entry {
    Entry { handler: "gate".into(), id: key.into(), key: None, sequence: 1, amount: 1 }
}

/// A reply that no other run gives.
fn reply() -> Response {
    (StatusCode::CREATED, uuid_like()).into_response()
}

fn uuid_like() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("{}-{}", std::process::id(), now.as_nanos())
}

/// Its effect, its key and its reply are one commit.
async fn claimed<F: StoreFixture<Store: Receipts>>(
    State(fixture): State<Arc<F>>,
    key: IdempotencyKey,
    mut tx: Claimed<F::Store>,
) -> Response {
    fixture.effect(&mut tx, &effect(key.key.as_str())).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    tx.seal(reply()).await.map(Body::new)
}

/// Its effect is one commit, and its reply another.
async fn apart<F: StoreFixture<Store: Receipts>>(
    State(fixture): State<Arc<F>>,
    key: IdempotencyKey,
) -> Response {
    let store = fixture.store();
    let Ok(mut tx) = store.begin().await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    fixture.effect(&mut tx, &effect(key.key.as_str())).await.unwrap();
    store.commit(tx).await.unwrap();
    // The moment between effect and receipt, drawn out for a kill to find it.
    tokio::time::sleep(Duration::from_millis(20)).await;
    reply()
}

/// No test by itself: what the parents start.
#[test]
fn a_gate_serves_until_it_is_killed() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(0);
    });
    let words: Vec<&str> = orders.split(' ').collect();
    let (schema, port, is_sabotaged) = (words[0].to_owned(), words[1].parse().unwrap(), words[2] == "true");
    let database = std::env::var(DATABASE).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let identifier = Identifier::new(&schema).unwrap();
        if database.starts_with("postgres") {
            let store = PostgresStore::connect(&database).await.unwrap().schema(identifier);
            let pool = store.pool().clone();
            serve(PostgresFixture { store, pool, schema }, port, is_sabotaged).await;
        } else {
            let store = SqliteStore::connect(&database).await.unwrap().prefix(identifier);
            serve(SqliteFixture { store, folder: PathBuf::new() }, port, is_sabotaged).await;
        }
    });
}

async fn serve<F: StoreFixture<Store: Receipts>>(fixture: F, port: u16, is_sabotaged: bool) {
    let fixture = Arc::new(fixture);
    let policy = Policy { lease: Duration::from_secs(1), ..Policy::default() };
    let gate = Gate::new(fixture.store()).policy(policy).unwrap();
    let router = Router::new();
    let router = if is_sabotaged {
        router.route("/", post(apart::<F>)).with_state(fixture).layer(gate.unscoped())
    } else {
        router.route("/", post(claimed::<F>)).with_state(fixture).layer(gate.transactional().unscoped())
    };
    let listener = loop {
        // The one before may not be quite gone.
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            break listener;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    axum::serve(listener, router).await.unwrap();
}

/// The body of the reply, if it is a whole one with 201.
async fn ask(port: u16, key: &str) -> Option<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let request = format!(
            "POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let length: usize =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
        (head.starts_with("HTTP/1.1 201") && body.len() == length).then(|| body.to_owned())
    };
    tokio::time::timeout(Duration::from_secs(20), exchange).await.ok().flatten()
}

struct Report {
    findings: Findings,
    /// Keys whose clients did not all read the same reply.
    torn: usize,
    kills: usize,
}

async fn run<F: Ground>(fixture: &Arc<F>, is_sabotaged: bool) -> Report {
    let (database, schema) = fixture.place();
    let orders = Orders { database, schema, port: free_port(), is_sabotaged };
    let mut dice = Dice::new(Dice::seed("F29"));
    let (next, port) = (Arc::new(AtomicUsize::new(0)), orders.port);
    let mut tasks = tokio::task::JoinSet::new();
    // All clients of a key at once, so that they meet.
    for _ in 0..sized(4, 2) {
        let next = Arc::clone(&next);
        tasks.spawn(async move {
            let mut replies: HashMap<String, Vec<String>> = HashMap::new();
            loop {
                let key = format!("key-{}", next.fetch_add(1, Ordering::SeqCst));
                if next.load(Ordering::SeqCst) > keys() {
                    return replies;
                }
                let mut all = tokio::task::JoinSet::new();
                for _ in 0..clients() {
                    let key = key.clone();
                    all.spawn(async move {
                        loop {
                            if let Some(body) = ask(port, &key).await {
                                return body;
                            }
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    });
                }
                replies.insert(key, all.join_all().await);
            }
        });
    }
    let (mut child, mut kills) = (orders.start(), 0);
    while next.load(Ordering::SeqCst) < keys() {
        tokio::time::sleep(Duration::from_millis(400 + dice.below(800) as u64)).await;
        drop(child);
        child = orders.start();
        kills += 1;
    }
    let mut replies: HashMap<String, Vec<String>> = HashMap::new();
    while let Some(more) = tasks.join_next().await {
        replies.extend(more.unwrap());
    }
    drop(child);
    let committed: Vec<Entry> = replies.keys().map(|key| effect(key)).collect();
    let torn = replies.values().filter(|all| all.iter().any(|one| *one != all[0])).count();
    let findings = Ledger::check(&committed, &fixture.effects().await);
    println!("F29 {}: {kills} kills, {} keys, {torn} torn, {findings}", F::GUARANTEES.name, replies.len());
    Report { findings, torn, kills }
}

async fn holds<F: Ground>(fixture: Arc<F>) {
    let report = run(&fixture, false).await;

    assert!(report.kills > 0, "nobody was killed");
    assert_eq!(report.torn, 0, "all clients of a key read the same reply");
    report.findings.assert_clean();
}

#[test]
fn a_gate_that_is_killed_over_and_over_has_one_effect_per_key_on_sqlite() {
    on_store::<SqliteFixture, _, _>(holds);
}

#[test]
fn a_gate_that_is_killed_over_and_over_has_one_effect_per_key_on_postgres() {
    on_store::<PostgresFixture, _, _>(holds);
}

#[test]
fn sabotaged_a_reply_kept_outside_of_the_transaction_doubles_effects() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let report = run(&fixture, true).await;

        assert!(!report.findings.doubled.is_empty(), "{}", report.findings);
    });
}
