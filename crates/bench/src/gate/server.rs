//! The service under load, in a process of its own.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use clap::Args;
use oncebox_core::gate::{
    Admission, AdmitRequest, Fingerprint, OnDoubt, OnMismatch, ReceiptKey, Receipts, Reply, Request,
};
use oncebox_core::{Digest, Identifier};
use oncebox_flow::memory::MemoryStore;
use oncebox_gate::{Claimed, Gate};
use oncebox_stores::postgres::{PostgresStore, migrate, pool_options};
use sqlx::{AssertSqlSafe, PgPool};

/// Which service, and what it finds.
#[derive(Clone, Debug)]
pub(super) struct Set {
    /// `none`, `memory`, `insert` (a row, no gate), `outside` or `claimed`.
    pub(super) gate: String,
    pub(super) store: String,
    /// Receipts that are there before.
    pub(super) receipts: usize,
}

impl Set {
    pub(super) fn plain() -> Self {
        Self { gate: "none".into(), store: String::new(), receipts: 0 }
    }

    pub(super) fn memory() -> Self {
        Self { gate: "memory".into(), ..Self::plain() }
    }
}

/// A running service; it ends with this value.
pub(super) struct Child {
    child: std::process::Child,
    pub(super) address: String,
}

impl Child {
    pub(super) fn start(set: &Set) -> Self {
        let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
        command.args(["gate-server", "--gate", &set.gate, "--receipts", &set.receipts.to_string()]);
        // Not among the arguments, where everybody could read its password.
        let mut child = command
            .env("ONCEBOX_BENCH_STORE", &set.store)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the service starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("its address");
        Self { child, address: line.trim().to_owned() }
    }

    /// Processor time so far, in microseconds.
    pub(super) fn cpu_micros(&self) -> f64 {
        /// What the kernel counts in, on every machine that Linux runs on.
        const MICROS_PER_TICK: f64 = 10_000.0;
        let text =
            std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("its statistics");
        let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
        (ticks(11) + ticks(12)) * MICROS_PER_TICK
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What a child is told.
#[derive(Args)]
pub(crate) struct ChildArguments {
    #[arg(long)]
    gate: String,
    #[arg(long)]
    receipts: usize,
    #[arg(long, env = "ONCEBOX_BENCH_STORE", hide_env_values = true)]
    store: String,
}

pub(crate) async fn child(arguments: ChildArguments) -> bool {
    // One thread, so that a request costs what it costs.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let is_served = runtime.spawn(serve(arguments)).await.is_ok();
    runtime.shutdown_background();
    is_served
}

async fn serve(arguments: ChildArguments) {
    let quick = Router::new().route("/orders", post(trivial)).route("/slow", post(slow));
    let router = match arguments.gate.as_str() {
        "none" => quick,
        "memory" => {
            let store = MemoryStore::new();
            fill(&store, arguments.receipts).await;
            quick.layer(Gate::new(store).unscoped())
        }
        gate => on_postgres(&arguments.store, gate).await,
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    axum::serve(listener, router).await.expect("it serves");
}

async fn trivial() -> Response {
    (StatusCode::CREATED, "{\"ok\":true}").into_response()
}

async fn slow() -> Response {
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    trivial().await
}

/// Receipts that nobody asks for.
async fn fill(store: &MemoryStore, count: usize) {
    let day = std::time::Duration::from_secs(86_400);
    let request = Request { method: "POST", path: "/", query: None, content_type: None, body: b"" };
    let reply = Reply { status: 201, body: Some(b"{}".to_vec()), ..Reply::default() };
    for n in 0..count {
        let request = AdmitRequest {
            key: ReceiptKey { scope: [0; 32], key: *Digest::of(&n.to_be_bytes()).as_bytes() },
            token: i64::try_from(n).expect("few"),
            fingerprint: Fingerprint::raw(&request),
            lease: day / 2,
            ttl: day,
            sliding: false,
            on_doubt: OnDoubt::Retry,
            on_mismatch: OnMismatch::Refuse,
        };
        if let Ok(Admission::Proceed(pass)) = store.admit(&request, None).await {
            store.seal(&pass, &reply).await.expect("a receipt");
        }
    }
}

async fn on_postgres(url: &str, gate: &str) -> Router {
    let schema = format!("bench_gate_{}", std::process::id());
    let pool = pool_options().max_connections(16).connect(url).await.expect("a database");
    let store = PostgresStore::new(pool.clone()).schema(Identifier::new(&schema).expect("a name"));
    migrate::up(&store).await.expect("tables");
    let table =
        "CREATE TABLE IF NOT EXISTS bench_gate_order (id bigint GENERATED ALWAYS AS IDENTITY, item text)";
    sqlx::raw_sql(AssertSqlSafe(table)).execute(&pool).await.ok();
    let inserting = Router::new().route("/orders", post(insert)).with_state(pool);
    match gate {
        "insert" => inserting,
        "outside" => inserting.layer(Gate::new(store).unscoped()),
        _ => Router::new().route("/orders", post(claimed)).layer(Gate::new(store).transactional().unscoped()),
    }
}

const INSERT: &str = "INSERT INTO bench_gate_order (item) VALUES ('tea')";

async fn insert(State(pool): State<PgPool>) -> Response {
    let mut tx = pool.begin().await.expect("a transaction");
    sqlx::query(INSERT).execute(&mut *tx).await.expect("a row");
    tx.commit().await.expect("a commit");
    trivial().await
}

async fn claimed(mut tx: Claimed<PostgresStore>) -> Response {
    sqlx::query(INSERT).execute(&mut *tx).await.expect("a row");
    let reply = trivial().await;
    tx.seal(reply).await.map(Body::new)
}
