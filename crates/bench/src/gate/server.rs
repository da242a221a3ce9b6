//! The service under load.

use std::process::Command;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::{Args, ValueEnum};
use oncebox_core::Digest;
use oncebox_core::gate::{
    Admission, AdmitRequest, Durability, Fingerprint, OnDoubt, OnMismatch, ReceiptKey, Receipts, Reply,
    Request,
};
use oncebox_flow::memory::MemoryStore;
use oncebox_gate::{Caller, Claimed, Gate, GateBuilder, Policy};
use oncebox_stores::postgres::{PostgresStore, pool_options};
use oncebox_stores::sqlite::SqliteStore;
use serde::Deserialize;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::net::TcpListener;

/// Where a child is told its database, since everybody can read its arguments.
const STORE: &str = "ONCEBOX_BENCH_STORE";

/// What stands before the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Before {
    /// Nothing.
    Nothing,
    /// A gate that lets everything past it.
    Off,
    /// A gate with receipts in memory.
    Memory,
    /// A gate with receipts in SQLite.
    Sqlite,
    /// A gate with receipts in PostgreSQL.
    Postgres,
    /// Nothing; the handler inserts a row into PostgreSQL.
    Insert,
    /// A transactional gate; the handler inserts the row in its transaction.
    Claimed,
    /// Nothing; the handler does by hand what a transactional gate does, as far as one would.
    ByHand,
}

/// Which service, and what it finds.
#[derive(Args, Clone, Debug)]
pub(crate) struct Service {
    #[arg(long, value_enum)]
    pub(super) before: Before,
    #[arg(long, env = STORE, hide_env_values = true, default_value = "")]
    pub(super) store: String,
    /// Receipts that are there before.
    #[arg(long, default_value_t = 0)]
    pub(super) receipts: usize,
    /// How long the handler takes.
    #[arg(long, default_value_t = 0)]
    pub(super) millis: u64,
    /// How large its reply is; 0 is a small one.
    #[arg(long, default_value_t = 0)]
    pub(super) reply_bytes: usize,
    /// How much memory receipts may take.
    #[arg(long)]
    pub(super) capacity: Option<usize>,
    /// The handler does not read what is sent to it.
    #[arg(long)]
    pub(super) ignores_body: bool,
    /// Admissions do not wait for the disk.
    #[arg(long)]
    pub(super) is_relaxed: bool,
    /// JSON is compared byte by byte.
    #[arg(long)]
    pub(super) is_raw: bool,
}

impl Service {
    pub(super) const fn new(before: Before) -> Self {
        let store = String::new();
        Self {
            before,
            store,
            receipts: 0,
            millis: 0,
            reply_bytes: 0,
            capacity: None,
            ignores_body: false,
            is_relaxed: false,
            is_raw: false,
        }
    }

    /// How to start it.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let before = self.before.to_possible_value().expect("a name");
        command.args(["gate-server", "--before", before.get_name()]);
        command.args(["--receipts", &self.receipts.to_string(), "--millis", &self.millis.to_string()]);
        command.args(["--reply-bytes", &self.reply_bytes.to_string()]);
        if let Some(capacity) = self.capacity {
            command.args(["--capacity", &capacity.to_string()]);
        }
        if self.ignores_body {
            command.arg("--ignores-body");
        }
        if self.is_relaxed {
            command.arg("--is-relaxed");
        }
        if self.is_raw {
            command.arg("--is-raw");
        }
        command.env(STORE, &self.store);
        command
    }
}

/// How the handler behaves, and how often it ran.
struct Handler {
    takes: Duration,
    reply: Bytes,
    runs: AtomicUsize,
}

impl Handler {
    async fn run(&self) -> Response {
        self.runs.fetch_add(1, Ordering::Relaxed);
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        let kind = [(CONTENT_TYPE, "application/json")];
        (StatusCode::CREATED, kind, self.reply.clone()).into_response()
    }
}

/// What handlers share; the pool is for those that write.
type Shared<P> = State<(Arc<Handler>, P)>;

/// The child's whole life.
pub(crate) async fn serve(service: Service) -> bool {
    // One thread, so that a request costs what it costs.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let is_served = runtime.spawn(listen(service)).await.is_ok();
    runtime.shutdown_background();
    is_served
}

async fn listen(service: Service) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    service.answer(listener).await;
}

impl Service {
    /// Answers whoever comes, on the runtime of the caller.
    pub(super) async fn answer(self, listener: TcpListener) {
        axum::serve(listener, self.router().await).await.expect("it serves");
    }

    async fn router(self) -> Router {
        let service = self;
        let reply = match service.reply_bytes {
            0 => "{\"ok\":true}".to_owned(),
            bytes => format!("{{\"ok\":\"{}\"}}", "x".repeat(bytes.saturating_sub(9))),
        };
        let takes = Duration::from_millis(service.millis);
        let handler = Arc::new(Handler { takes, reply: reply.into(), runs: AtomicUsize::new(0) });
        let plain = if service.ignores_body { deaf() } else { reader() };
        let plain = plain.with_state((Arc::clone(&handler), ()));
        let reserve_durability = if service.is_relaxed { Durability::Relaxed } else { Durability::Full };
        let policy = Policy { reserve_durability, raw_fingerprint: service.is_raw, ..Policy::default() };
        let router = match service.before {
            Before::Nothing => plain,
            Before::Off => {
                let off = Policy { methods: Vec::new(), ..Policy::default() };
                plain.layer(by_cookie(Gate::new(MemoryStore::new()).policy(off).expect("a policy")))
            }
            Before::Memory => {
                let store = MemoryStore::new();
                let store = match service.capacity {
                    Some(bytes) => store.receipt_capacity(bytes),
                    None => store,
                };
                fill(&store, service.receipts).await;
                plain.layer(by_cookie(Gate::new(store).policy(policy).expect("a policy")))
            }
            Before::Sqlite => {
                let store = SqliteStore::connect(&service.store).await.expect("a database");
                plain.layer(by_cookie(Gate::new(store).policy(policy).expect("a policy")))
            }
            Before::Postgres => {
                let gate = Gate::new(postgres(&service.store).await).policy(policy).expect("a policy");
                plain.layer(by_cookie(gate))
            }
            Before::Insert => {
                let pool = postgres(&service.store).await.pool().clone();
                Router::new().route("/orders", post(insert)).with_state((Arc::clone(&handler), pool))
            }
            Before::Claimed => {
                let gate = by_cookie(Gate::new(postgres(&service.store).await).transactional());
                Router::new()
                    .route("/orders", post(claimed))
                    .with_state((Arc::clone(&handler), ()))
                    .layer(gate)
            }
            Before::ByHand => {
                let pool = postgres(&service.store).await.pool().clone();
                Router::new().route("/orders", post(by_hand)).with_state((Arc::clone(&handler), pool))
            }
        };
        let count = get(async move || handler.runs.load(Ordering::Relaxed).to_string());
        router.route("/runs", count).route("/session", post(session))
    }
}

/// An order as the handler has it.
#[derive(Deserialize)]
struct Order {
    order: String,
    customer: Customer,
    currency: String,
    lines: Vec<Line>,
    note: String,
}

#[derive(Deserialize)]
struct Customer {
    id: u64,
    vip: bool,
    referrer: Option<String>,
}

#[derive(Deserialize)]
struct Line {
    sku: String,
    title: String,
    quantity: u32,
    price: String,
}

/// A handler that reads its order, and nothing more.
fn reader() -> Router<(Arc<Handler>, ())> {
    let read = async |State((handler, ())): Shared<()>, Json(order): Json<Order>| {
        std::hint::black_box(order.fields());
        handler.run().await
    };
    Router::new().route("/orders", post(read))
}

/// A handler that does not even read it.
fn deaf() -> Router<(Arc<Handler>, ())> {
    Router::new().route("/orders", post(async |State((handler, ())): Shared<()>| handler.run().await))
}

impl Order {
    /// How much it has, so that all of it is used.
    fn fields(&self) -> usize {
        let Customer { id, vip, referrer } = &self.customer;
        let line =
            |line: &Line| line.sku.len() + line.title.len() + line.price.len() + line.quantity as usize;
        let customer = usize::from(*vip) + *id as usize + referrer.as_ref().map_or(0, String::len);
        let texts = self.order.len() + self.currency.len() + self.note.len();
        customer + texts + self.lines.iter().map(line).sum::<usize>()
    }
}

async fn session() -> impl IntoResponse {
    [(SET_COOKIE, format!("session={}; HttpOnly; Path=/", uuid::Uuid::new_v4()))]
}

/// Callers are told apart by their sessions; those without one are one.
fn by_cookie<S: Receipts>(gate: GateBuilder<S>) -> Gate<S> {
    gate.scope(|request| {
        let cookie = request.headers.get(COOKIE).and_then(|cookie| cookie.to_str().ok());
        Some(Caller { tenant: String::new(), principal: cookie.unwrap_or_default().to_owned() })
    })
}

/// A store with a pool of its own, as `connect` makes it, but larger.
async fn postgres(url: &str) -> PostgresStore {
    let pool = pool_options().min_connections(16).max_connections(16);
    let store = PostgresStore::with_pool(pool, PgConnectOptions::from_str(url).expect("a url"));
    store.pool().acquire().await.expect("a database");
    store
}

const INSERT: &str = "INSERT INTO bench_order (customer, sequence, amount) VALUES ('bench', 1, 1)";

const TAKE: &str = "INSERT INTO bench_key (key) VALUES ($1) ON CONFLICT DO NOTHING";
const KEEP: &str = "UPDATE bench_key SET status = $2, reply = $3 WHERE key = $1";

async fn insert(State((handler, pool)): Shared<PgPool>) -> Response {
    let mut tx = pool.begin().await.expect("a transaction");
    sqlx::query(INSERT).execute(&mut *tx).await.expect("a row");
    let reply = handler.run().await;
    tx.commit().await.expect("a commit");
    reply
}

/// As the recipe has it: the key as a row, what is to be done, the reply in that row. It does not compare requests,
/// nor tell who comes meanwhile.
async fn by_hand(State((handler, pool)): Shared<PgPool>, headers: HeaderMap) -> Response {
    let key = headers.get("idempotency-key").map(HeaderValue::as_bytes).unwrap_or_default();
    let mut tx = pool.begin().await.expect("a transaction");
    let taken = sqlx::query(TAKE).bind(key).execute(&mut *tx).await.expect("a key");
    assert_eq!(taken.rows_affected(), 1, "nobody sends a key twice here");
    sqlx::query(INSERT).execute(&mut *tx).await.expect("a row");
    let reply = handler.run().await;
    let status = i32::from(reply.status().as_u16());
    sqlx::query(KEEP)
        .bind(key)
        .bind(status)
        .bind(handler.reply.as_ref())
        .execute(&mut *tx)
        .await
        .expect("a reply");
    tx.commit().await.expect("a commit");
    reply
}

async fn claimed(State((handler, ())): Shared<()>, mut tx: Claimed<PostgresStore>) -> Response {
    sqlx::query(INSERT).execute(&mut *tx).await.expect("a row");
    let reply = handler.run().await;
    tx.seal(reply).await.map(Body::new)
}

/// Receipts that nobody asks for.
async fn fill(store: &MemoryStore, count: usize) {
    let day = Duration::from_secs(86_400);
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
            durability: Durability::Full,
        };
        if let Ok(Admission::Proceed(pass)) = store.admit(&request, None).await {
            store.seal(&pass, &reply).await.expect("a receipt");
        }
    }
}
