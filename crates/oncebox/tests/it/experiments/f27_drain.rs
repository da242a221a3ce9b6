//! F27 drain: a relay and a consumer are told to stop while they work, again
//! and again. They end within their grace, give all leases back, and nothing
//! they finished is sent or handled once more. Once with the real program and
//! SIGTERM.
//!
//! Sabotage: the tasks are aborted instead, which is what `exit` does.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::inspect::Inspect;
use oncebox::memory::{Confirm, MemoryTransport};
use oncebox::{Consumer, Envelope, Failure, Inbox, Outbox, Publisher, Relay, Result, Store, Subscriber};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::{Entry, Ledger, StoreFixture};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bodies::{HANDLER, tireless};
use super::booking::{Booking, operation};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

const STOPS: usize = 30;
/// Messages committed while a relay and a consumer run.
const LOAD: i64 = 60;
const GRACE: Duration = Duration::from_secs(5);

/// The transport, with a count of what it took.
#[derive(Clone)]
struct Wire {
    transport: MemoryTransport,
    stored: Arc<AtomicUsize>,
}

impl Publisher for Wire {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        // A broker takes its time, so that a stop finds messages under way.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let results = self.transport.publish(batch).await;
        self.stored.fetch_add(results.iter().filter(|result| result.is_ok()).count(), Ordering::SeqCst);
        results
    }
}

/// How a running pair is ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Drain,
    Abort,
}

struct Scene<F: StoreFixture> {
    fixture: Arc<F>,
    wire: Wire,
    bodies: Arc<AtomicUsize>,
    committed: Vec<Entry>,
}

impl<F: StoreFixture> Scene<F> {
    async fn new(fixture: Arc<F>) -> Self {
        // The transport outlives what is stopped, as a broker does.
        let transport = MemoryTransport::new().confirm(Confirm::OnEnqueue);
        transport.subscribe(DESTINATION, "books").await.unwrap();
        let wire = Wire { transport, stored: Arc::default() };
        Self { fixture, wire, bodies: Arc::default(), committed: Vec::new() }
    }

    async fn commit(&mut self, count: i64) {
        let start = i64::try_from(self.committed.len()).unwrap();
        let messages: Vec<Posted> =
            (start..start + count).map(|n| Posted::on(&format!("account-{}", n % 7), n)).collect();
        let store = self.fixture.store();
        let mut tx = store.begin().await.unwrap();
        Outbox::new(store.clone()).source(SOURCE).put_all(&mut tx, &messages).await.unwrap();
        store.commit(tx).await.unwrap();
        self.committed.extend(messages.iter().map(|message| operation(HANDLER, message)));
    }

    /// Starts a relay and a consumer, lets them work for a while and ends them.
    /// Answers with how long the end took, if it was in good order.
    async fn live_and_end(&mut self, load: i64, life: Duration, end: End) -> Option<Duration> {
        let mut booking = Booking::new(&self.fixture);
        booking.runs = Arc::clone(&self.bodies);
        let inbox = Inbox::builder(self.fixture.store(), DESTINATION).handler(booking).retry(tireless());
        let feed = self.wire.transport.subscribe(DESTINATION, "books").await.unwrap();
        let consumer = Consumer::new(inbox.build().unwrap(), feed).concurrency(4).drain(GRACE);
        let relay = Relay::builder(self.fixture.store(), self.wire.clone()).batch(8).drain(GRACE);
        let relay = relay.poll(Duration::from_millis(5)).build().unwrap();
        let stop = CancellationToken::new();
        let (relay, consumer) =
            (tokio::spawn(relay.run(stop.clone())), tokio::spawn(consumer.run(stop.clone())));
        if load > 0 {
            self.commit(load).await;
        }
        tokio::time::sleep(life).await;
        let told = Instant::now();
        if end == End::Abort {
            relay.abort();
            consumer.abort();
            relay.await.ok();
            consumer.await.ok();
            return None;
        }
        stop.cancel();
        let (report, drained) = (relay.await.unwrap(), consumer.await.unwrap());
        (report.drained && drained).then(|| told.elapsed())
    }

    fn sent(&self) -> usize {
        self.wire.stored.load(Ordering::SeqCst)
    }

    /// Whether no shard has an owner and no relay is announced.
    async fn is_released(&self) -> bool {
        let status = self.fixture.store().status().await.unwrap();
        status.sinks.iter().all(|sink| sink.unowned_shards == 8 && sink.relays == 0)
    }
}

async fn drains<F: StoreFixture>(fixture: Arc<F>) {
    let mut dice = Dice::new(Dice::seed("f27_drain"));
    let mut scene = Scene::new(fixture).await;
    let (mut slowest, mut interrupted) = (Duration::ZERO, 0);
    for stop in 0..STOPS {
        let (life, sent) = (Duration::from_millis(5 + dice.below(50) as u64), scene.sent());

        let ended = scene.live_and_end(LOAD, life, End::Drain).await;

        slowest = slowest.max(ended.unwrap_or_else(|| panic!("stop {stop} was not in good order")));
        assert!(scene.is_released().await, "stop {stop} left a lease behind");
        let status = scene.fixture.store().status().await.unwrap();
        interrupted += usize::from(scene.sent() > sent && status.sinks[0].pending > 0);
    }
    // Long enough for the rest.
    let patience = Instant::now() + Duration::from_secs(20);
    while scene.fixture.effects().await.len() < scene.committed.len() && Instant::now() < patience {
        scene.live_and_end(0, Duration::from_millis(500), End::Drain).await;
    }

    let sent = scene.sent();
    println!(
        "F27 {}: {STOPS} stops ({interrupted} under load), slowest {slowest:?}, {} messages, {sent} sent",
        F::GUARANTEES.name,
        scene.committed.len()
    );
    assert!(slowest < GRACE, "{slowest:?}");
    Ledger::check(&scene.committed, &scene.fixture.effects().await).assert_clean();
    assert_eq!(sent, scene.committed.len(), "nothing that was sent is sent again");
    assert_eq!(scene.bodies.load(Ordering::SeqCst), scene.committed.len(), "nothing runs twice");
    assert!(interrupted > 0, "no stop met a relay at work");
}

async fn aborts<F: StoreFixture>(fixture: Arc<F>) {
    let mut scene = Scene::new(fixture).await;

    scene.live_and_end(LOAD, Duration::from_millis(200), End::Abort).await;

    assert!(!scene.is_released().await, "the lease of an aborted relay stays until it runs out");
}

#[test]
fn a_stop_under_load_leaves_no_lease_and_repeats_nothing_on_sqlite() {
    on_store::<SqliteFixture, _, _>(drains);
}

#[test]
fn a_stop_under_load_leaves_no_lease_and_repeats_nothing_on_postgres() {
    on_store::<PostgresFixture, _, _>(drains);
}

#[test]
fn sabotaged_an_abort_leaves_its_leases_on_sqlite() {
    on_store::<SqliteFixture, _, _>(aborts);
}

#[test]
fn sabotaged_an_abort_leaves_its_leases_on_postgres() {
    on_store::<PostgresFixture, _, _>(aborts);
}

/// The program, beside this test. A full test run has built it; for others it
/// is built by the cargo that runs them.
fn program() -> PathBuf {
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let built = target.join("debug/oncebox");
    let is_full_run = std::env::var_os("ONCEBOX_NO_SKIP").is_some() && built.exists();
    if !is_full_run {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "oncebox-cli", "--target-dir"]).arg(&target);
        assert!(build.status().unwrap().success());
    }
    built
}

/// Waits for a child, but not for ever.
fn wait(child: &mut Child) -> Option<i32> {
    let patience = std::time::Instant::now() + GRACE + Duration::from_secs(8);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(std::time::Instant::now() < patience, "the program does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts `oncebox relay`, signals it after some lines, and reads the rest.
fn relay_until(program: PathBuf, signal: &str, after: usize, database: &str) -> (Option<i32>, Vec<String>) {
    let mut command = Command::new(program);
    command
        .args(["relay", "--to", "stdout", "--batch", "20", "--poll", "5", "--keep", "0", "--db", database]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut printed: Vec<String> = lines.by_ref().take(after).collect();
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    printed.extend(lines);
    (wait(&mut child), printed)
}

fn ids(lines: &[String]) -> HashSet<String> {
    let id = |line: &String| line.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    lines.iter().map(id).collect()
}

#[test]
fn a_relay_process_that_is_terminated_settles_exactly_what_it_printed() {
    let program = program();
    on_store::<SqliteFixture, _, _>(|fixture| async move {
        let database = fixture.folder.join("store.db").to_str().unwrap().to_owned();
        let mut scene = Scene::new(fixture).await;
        scene.commit(3_000).await;

        let (first, again) = (database.clone(), program.clone());
        let (code, printed) =
            tokio::task::spawn_blocking(move || relay_until(program, "-TERM", 200, &first)).await.unwrap();
        let pending = scene.fixture.store().status().await.unwrap().sinks[0].pending;
        let released = scene.is_released().await;
        scene.commit(500).await;
        let (second, rest) = tokio::task::spawn_blocking(move || {
            let left = usize::try_from(pending).unwrap() + 500;
            relay_until(again, "-TERM", left, &database)
        })
        .await
        .unwrap();

        println!("F27 process: {} lines before the end, {} after it", printed.len(), rest.len());
        assert_eq!((code, second), (Some(0), Some(0)));
        assert!(released, "its leases are given back");
        assert_eq!(
            printed.len() + usize::try_from(pending).unwrap(),
            3_000,
            "printed is settled, settled is printed"
        );
        assert!(pending > 0, "it was stopped under load");
        let (before, after) = (ids(&printed), ids(&rest));
        assert!(before.is_disjoint(&after) && before.len() + after.len() == 3_500);
    });
}

#[test]
fn sabotaged_a_relay_process_that_is_killed_leaves_its_leases() {
    let program = program();
    on_store::<SqliteFixture, _, _>(|fixture| async move {
        let database = fixture.folder.join("store.db").to_str().unwrap().to_owned();
        let mut scene = Scene::new(fixture).await;
        scene.commit(3_000).await;

        let (code, _) =
            tokio::task::spawn_blocking(move || relay_until(program, "-KILL", 200, &database)).await.unwrap();

        assert_eq!(code, None, "by the signal");
        assert!(!scene.is_released().await);
    });
}
