//! F29 gate-torture: many clients send the same requests to a service behind
//! the gate that is killed over and over, at random times and at the gate's own
//! crash points. Every client of a key reads the same reply, and no key is
//! stuck past its lease. In the handler's transaction each request has one
//! effect; behind the layer it has one more only for a run that was killed.
//!
//! Sabotage: the reply is kept outside of the transaction.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use oncebox::crash::Reaction;
use oncebox::gate::{Claimed, Gate, IdempotencyKey, Policy, Receipts};
use oncebox::stores::{postgres::PostgresStore, sqlite::SqliteStore};
use oncebox::{CrashPoint, Identifier, Probe, Store as _};
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
/// How long a run may show no sign of life.
const LEASE: Duration = Duration::from_secs(2);
/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(15);

/// Behind the layer a kill costs a lease, so there are fewer.
fn keys(mode: Mode) -> usize {
    match mode {
        Mode::Claimed => sized(40, 10_000),
        Mode::Layer => sized(40, 2_000),
    }
}

/// Clients that send each request.
fn clients() -> usize {
    sized(4, 32)
}

/// Where keys are claimed and replies kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// In the handler's transaction.
    Claimed,
    /// Before and after the handler.
    Layer,
}

/// What the service of a test is told.
#[derive(Clone)]
struct Orders {
    database: String,
    schema: String,
    port: u16,
    mode: Mode,
}

impl Orders {
    /// A service; one that has an end kills itself at a visit of a crash point.
    fn start(&self, end: Option<(CrashPoint, usize)>) -> Killed {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([CHILD, "--exact", "--test-threads=1"]).env(DATABASE, &self.database);
        let (point, visit) = end.map_or(("nowhere", 0), |(point, visit)| (named(point), visit));
        let Self { schema, port, mode, .. } = self;
        child.env(ORDERS, format!("{schema} {port} {mode:?} {point} {visit}"));
        child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Killed(child.spawn().unwrap())
    }
}

fn named(point: CrashPoint) -> &'static str {
    match point {
        CrashPoint::H1 => "H1",
        CrashPoint::H2 => "H2",
        CrashPoint::H6 => "H6",
        other => panic!("{other:?} is no point of the gate"),
    }
}

/// Ends the process at a visit of a point, as a kill would.
fn deadly(point: &str, visit: usize) -> Probe {
    let end = CrashPoint::GATE.into_iter().find(|known| named(*known) == point);
    let visits = AtomicUsize::new(0);
    Probe::new(move |reached| {
        if Some(reached) == end && visits.fetch_add(1, Ordering::SeqCst) + 1 == visit {
            std::process::abort();
        }
        std::future::ready(Reaction::Go)
    })
}

struct Killed(Child);

impl Killed {
    /// Whether it has killed itself already.
    fn is_dead(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// In the ledger is also which process it was.
fn effect(key: &str) -> Entry {
    Entry { handler: "gate".into(), id: key.into(), key: None, sequence: process(), amount: 1 }
}

/// A number for this process; one that is started later has a higher one.
fn process() -> i64 {
    static STARTED: OnceLock<i64> = OnceLock::new();
    *STARTED.get_or_init(|| i64::try_from(now()).unwrap())
}

fn now() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
}

/// A reply that no other run gives.
fn reply() -> Response {
    (StatusCode::CREATED, format!("{}-{}", process(), now())).into_response()
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
    let (schema, port) = (words[0].to_owned(), words[1].parse().unwrap());
    let mode = if words[2] == "Layer" { Mode::Layer } else { Mode::Claimed };
    let probe = deadly(words[3], words[4].parse().unwrap());
    let database = std::env::var(DATABASE).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let identifier = Identifier::new(&schema).unwrap();
        if database.starts_with("postgres") {
            let store = PostgresStore::connect(&database).await.unwrap().schema(identifier);
            let pool = store.pool().clone();
            serve(PostgresFixture { store, pool, schema }, port, (mode, probe)).await;
        } else {
            let store = SqliteStore::connect(&database).await.unwrap().prefix(identifier);
            serve(SqliteFixture { store, folder: PathBuf::new() }, port, (mode, probe)).await;
        }
    });
}

async fn serve<F: StoreFixture<Store: Receipts>>(fixture: F, port: u16, (mode, probe): (Mode, Probe)) {
    let fixture = Arc::new(fixture);
    let policy = Policy { lease: LEASE, ..Policy::default() };
    let gate = Gate::new(fixture.store()).policy(policy).unwrap().probe(probe);
    let router = Router::new();
    let router = match mode {
        Mode::Layer => router.route("/", post(apart::<F>)).with_state(fixture).layer(gate.unscoped()),
        Mode::Claimed => {
            router.route("/", post(claimed::<F>)).with_state(fixture).layer(gate.transactional().unscoped())
        }
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
    // Shorter than the slack: one that hangs is asked again before its key counts as stuck.
    tokio::time::timeout(Duration::from_secs(8), exchange).await.ok().flatten()
}

/// When a service was started last, and how long a key was waited for at most while nobody was killed.
#[derive(Clone)]
struct Watch(Arc<Mutex<(Instant, Duration)>>);

/// How far the clients are, and whether they may stop.
#[derive(Default)]
struct Course {
    next: AtomicUsize,
    is_over: AtomicBool,
}

impl Course {
    /// The number of the next key, as long as somebody is still to be killed.
    fn next(&self) -> Option<usize> {
        let is_over = self.is_over.load(Ordering::SeqCst);
        (!is_over).then(|| self.next.fetch_add(1, Ordering::SeqCst))
    }

    fn is_long_enough(&self, mode: Mode) -> bool {
        self.next.load(Ordering::SeqCst) >= keys(mode)
    }
}

impl Watch {
    fn new() -> Self {
        Self(Arc::new(Mutex::new((Instant::now(), Duration::ZERO))))
    }

    fn started(&self) {
        self.0.lock().unwrap().0 = Instant::now();
    }

    /// A key that was first asked for then is waited for still, or was until now: not for ever.
    #[track_caller]
    fn waited(&self, key: &str, asked: Instant) {
        let mut watch = self.0.lock().unwrap();
        let waited = watch.0.max(asked).elapsed();
        watch.1 = watch.1.max(waited);
        assert!(waited < LEASE + SLACK, "{key} is stuck: nobody was killed for {waited:?}");
    }
}

/// Asks until there is an answer.
async fn insist(port: u16, key: String, watch: Watch) -> String {
    let asked = Instant::now();
    loop {
        let answer = ask(port, &key).await;
        watch.waited(&key, asked);
        if let Some(body) = answer {
            return body;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How many died at each point.
type Deaths = BTreeMap<&'static str, usize>;
/// What the clients of each key have read.
type Replies = HashMap<String, Vec<String>>;

/// Sends all requests, those of a key at once, so that they meet.
async fn send(port: u16, course: Arc<Course>, watch: Watch) -> Replies {
    let mut replies = Replies::new();
    while let Some(number) = course.next() {
        let key = format!("key-{number}");
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..clients() {
            all.spawn(insist(port, key.clone(), watch.clone()));
        }
        replies.insert(key, all.join_all().await);
    }
    replies
}

struct Report {
    findings: Findings,
    effects: Vec<Entry>,
    replies: Replies,
    /// Keys whose clients did not all read the same reply.
    torn: usize,
    kills: usize,
    /// How many of them were at each point.
    at_points: Deaths,
}

/// Kills services at random times, and at each point in turns, until enough requests are on their way.
async fn kill(orders: &Orders, course: &Course, watch: &Watch) -> (Killed, usize, Deaths) {
    let (mut dice, mut kills) = (Dice::new(Dice::seed("F29")), 0);
    let mut at_points = Deaths::from(CrashPoint::GATE.map(|point| (named(point), 0)));
    while !course.is_long_enough(orders.mode) || at_points.values().any(|deaths| *deaths == 0) {
        let point = CrashPoint::GATE[kills / 2 % CrashPoint::GATE.len()];
        // Every second one dies by itself, if it is not killed before.
        let end = (kills % 2 == 0).then(|| (point, 1 + dice.below(3)));
        let mut child = orders.start(end);
        watch.started();
        let life = Duration::from_millis(400 + dice.below(800) as u64);
        // What the one before left behind is free only when its lease is over.
        let until = Instant::now() + life + if orders.mode == Mode::Layer { LEASE } else { Duration::ZERO };
        while Instant::now() < until && !child.is_dead() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(end.is_some() || !child.is_dead(), "a service ended that nobody has killed");
        *at_points.get_mut(named(point)).unwrap() += usize::from(child.is_dead());
        kills += 1;
        assert!(kills < 100 + keys(orders.mode), "{at_points:?}");
    }
    // The last one stays: whatever is still asked for must now come to its end.
    course.is_over.store(true, Ordering::SeqCst);
    let child = orders.start(None);
    watch.started();
    (child, kills, at_points)
}

async fn run<F: Ground>(fixture: &Arc<F>, mode: Mode) -> Report {
    let (database, schema) = fixture.place();
    let orders = Orders { database, schema, port: free_port(), mode };
    let (course, watch) = (Arc::new(Course::default()), Watch::new());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..sized(4, 2) {
        tasks.spawn(send(orders.port, Arc::clone(&course), watch.clone()));
    }
    let (child, kills, at_points) = kill(&orders, &course, &watch).await;
    let replies: Replies = tasks.join_all().await.into_iter().flatten().collect();
    drop(child);
    let committed: Vec<Entry> = replies.keys().map(|key| effect(key)).collect();
    let torn = replies.values().filter(|all| all.iter().any(|one| *one != all[0])).count();
    let effects = fixture.effects().await;
    let findings = Ledger::check(&committed, &effects);
    let (name, last) = (F::GUARANTEES.name, watch.0.lock().unwrap().1);
    println!(
        "F29 {name} {mode:?}: {kills} kills, at points {at_points:?}, {} keys, {torn} torn, waited \
         {last:?} at most, {findings}",
        replies.len()
    );
    Report { findings, effects, replies, torn, kills, at_points }
}

/// What holds wherever replies are kept.
fn one_reply(report: &Report, mode: Mode) {
    assert!(report.kills > 0, "nobody was killed");
    assert!(report.at_points.values().all(|deaths| *deaths > 0), "{:?}", report.at_points);
    assert!(report.replies.len() >= keys(mode), "every key was answered");
    assert_eq!(report.torn, 0, "all clients of a key read the same reply");
}

async fn claimed_holds<F: Ground>(fixture: Arc<F>) {
    let report = run(&fixture, Mode::Claimed).await;

    one_reply(&report, Mode::Claimed);
    report.findings.assert_clean();
}

/// A second effect is that of another process, after the first one was killed; its reply is the one that counts.
async fn layer_holds<F: Ground>(fixture: Arc<F>) {
    let report = run(&fixture, Mode::Layer).await;

    one_reply(&report, Mode::Layer);
    assert!(report.findings.lost.is_empty() && report.findings.phantoms.is_empty(), "{}", report.findings);
    let mut runs: HashMap<&str, Vec<i64>> = HashMap::new();
    for effect in &report.effects {
        runs.entry(&effect.id).or_default().push(effect.sequence);
    }
    for (key, processes) in runs {
        assert!(processes.is_sorted_by(|one, next| one < next), "{key} ran twice in {processes:?}");
        let replied: i64 = report.replies[key][0].split('-').next().unwrap().parse().unwrap();
        assert_eq!(processes.last(), Some(&replied), "{key}: the reply is that of the last run");
    }
}

#[test]
fn a_gate_that_is_killed_over_and_over_has_one_effect_per_key_on_sqlite() {
    on_store::<SqliteFixture, _, _>(claimed_holds);
}

#[test]
fn a_gate_that_is_killed_over_and_over_has_one_effect_per_key_on_postgres() {
    on_store::<PostgresFixture, _, _>(claimed_holds);
}

#[test]
fn a_layer_that_is_killed_over_and_over_runs_again_only_what_was_killed_on_sqlite() {
    on_store::<SqliteFixture, _, _>(layer_holds);
}

#[test]
fn a_layer_that_is_killed_over_and_over_runs_again_only_what_was_killed_on_postgres() {
    on_store::<PostgresFixture, _, _>(layer_holds);
}

#[test]
fn sabotaged_a_reply_kept_outside_of_the_transaction_doubles_effects() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let report = run(&fixture, Mode::Layer).await;

        assert!(!report.findings.doubled.is_empty(), "{}", report.findings);
    });
}
