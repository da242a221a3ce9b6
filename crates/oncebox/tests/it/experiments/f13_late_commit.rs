//! F13 late-commit: many writers whose commits come late, out of order or not
//! at all, while a relay reads. No row is skipped, each key keeps its order, and
//! a transaction that has nothing to do with it delays nothing.
//!
//! Sabotage: a store that passes positions it cannot see yet for good, which is
//! what `WHERE id > last` does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::{Envelope, Failure, Identifier, Outbox, Publisher, Relay, Result, Store};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::Posted;
use oncebox_conformance::{Entry, Findings, Ledger};
use oncebox_stores::postgres::{PostgresStore, pool_options};
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bodies::HANDLER;
use super::booking::{booked, operation};
use super::sabotaged::{Mode, Sabotaged};
use crate::conformance::postgres::PostgresFixture;

const WRITERS: u64 = 16;
const TRANSACTIONS: i64 = 48;
const ROWS: i64 = 4;
const LONGEST_DELAY: usize = 200;
const ROLLBACKS_ONE_IN: usize = 10;
/// From the commit to the wire, for all but one in a hundred.
const LAG: Duration = Duration::from_millis(1200);
/// How long everything may take that nobody has lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// A destination that takes everything and writes down when it came.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<(Entry, Instant)>>>);

impl Publisher for Recorder {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let now = Instant::now();
        self.0.lock().unwrap().extend(batch.iter().map(|envelope| (booked(envelope), now)));
        vec![Ok(()); batch.len()]
    }
}

impl Recorder {
    fn arrived(&self) -> Vec<(Entry, Instant)> {
        self.0.lock().unwrap().clone()
    }
}

type Committed = Arc<Mutex<Vec<(Entry, Instant)>>>;

/// One writer with a key of its own, so that what it commits has an order.
async fn write(store: PostgresStore, writer: u64, seed: u64, committed: Committed) {
    let (outbox, mut dice) = (Outbox::new(store.clone()), Dice::new(seed + writer));
    let mut sequence = 0;
    for _ in 0..TRANSACTIONS {
        let messages: Vec<Posted> =
            (0..ROWS).map(|row| Posted::on(&format!("writer-{writer}"), sequence + row)).collect();
        sequence += ROWS;
        let mut tx = store.begin().await.unwrap();
        outbox.put_all(&mut tx, &messages).await.unwrap();
        tokio::time::sleep(Duration::from_millis(dice.below(LONGEST_DELAY + 1) as u64)).await;
        if dice.once_in(ROLLBACKS_ONE_IN) {
            store.rollback(tx).await.unwrap();
            continue;
        }
        store.commit(tx).await.unwrap();
        let now = Instant::now();
        let entries = messages.iter().map(|message| (operation(HANDLER, message), now));
        committed.lock().unwrap().extend(entries);
    }
}

struct Report {
    findings: Findings,
    rows: usize,
    lag: Duration,
    stall: Duration,
}

/// The longest time the server, or this process, took for nothing at all: what
/// no relay can do better.
async fn longest_stall(store: PostgresStore, stop: CancellationToken) -> Duration {
    const PAUSE: Duration = Duration::from_millis(20);
    let mut connection = store.pool().acquire().await.unwrap();
    let mut longest = Duration::ZERO;
    while !stop.is_cancelled() {
        // A stall during the pause counts as well.
        let asked = Instant::now();
        tokio::time::sleep(PAUSE).await;
        sqlx::raw_sql("SELECT 1").execute(&mut *connection).await.unwrap();
        longest = longest.max(asked.elapsed().saturating_sub(PAUSE));
    }
    longest
}

async fn run(fixture: Arc<PostgresFixture>, mode: Mode) -> Report {
    let seed = Dice::seed("f13_late_commit");
    let url = std::env::var("ONCEBOX_TEST_POSTGRES_URL").unwrap();
    let pool = pool_options().max_connections(24).connect(&url).await.unwrap();
    let store = PostgresStore::new(pool).schema(Identifier::new(&fixture.schema).unwrap());
    let (committed, recorder, stop) = (Committed::default(), Recorder::default(), CancellationToken::new());
    let relay = Relay::builder(Sabotaged::new(store.clone(), mode), recorder.clone());
    let relay = tokio::spawn(relay.poll(Duration::from_millis(20)).build().unwrap().run(stop.clone()));

    let stall = tokio::spawn(longest_stall(store.clone(), stop.clone()));
    // One that writes elsewhere and never ends, and one that puts first and commits last.
    let mut foreign = store.begin().await.unwrap();
    let elsewhere = format!(
        "INSERT INTO {}.ledger (handler, id, sequence, amount) VALUES ('foreign', '', 0, 0)",
        fixture.schema
    );
    sqlx::raw_sql(AssertSqlSafe(elsewhere)).execute(&mut *foreign).await.unwrap();
    let (last, mut late) = (Posted::on("late", 0), store.begin().await.unwrap());
    Outbox::new(store.clone()).put(&mut late, &last).await.unwrap();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(store.clone(), writer, seed, Arc::clone(&committed)));
    }
    writers.join_all().await;
    store.commit(late).await.unwrap();
    committed.lock().unwrap().push((operation(HANDLER, &last), Instant::now()));
    let committed = committed.lock().unwrap().clone();
    let patience = Instant::now() + if mode == Mode::Honest { PATIENCE } else { 2 * LAG };
    while recorder.arrived().len() < committed.len() && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    assert!(relay.await.unwrap().drained);
    let stall = stall.await.unwrap();
    store.rollback(foreign).await.unwrap();
    store.pool().close().await;
    Report { stall, ..report(&committed, &recorder.arrived()) }
}

fn report(committed: &[(Entry, Instant)], arrived: &[(Entry, Instant)]) -> Report {
    let of = |list: &[(Entry, Instant)]| list.iter().map(|(entry, _)| entry.clone()).collect::<Vec<_>>();
    let findings = Ledger::check(&of(committed), &of(arrived));
    let when: std::collections::HashMap<_, _> =
        arrived.iter().map(|(entry, at)| (entry.identity(), *at)).collect();
    let lag = |(entry, at): &(Entry, Instant)| {
        when.get(&entry.identity()).map(|arrived| arrived.saturating_duration_since(*at))
    };
    let mut lags: Vec<Duration> = committed.iter().filter_map(lag).collect();
    lags.sort();
    Report { findings, rows: committed.len(), lag: lags[lags.len() * 99 / 100], stall: Duration::ZERO }
}

#[test]
fn rows_that_commit_late_are_neither_skipped_nor_reordered_nor_long_in_coming() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let report = run(fixture, Mode::Honest).await;

        let Report { lag, stall, .. } = report;
        println!("F13: {} rows, p99 lag {lag:?} (stall {stall:?}), {}", report.rows, report.findings);
        assert!(report.rows > 2_400, "{} rows", report.rows);
        report.findings.assert_clean();
        // A pass of the relay is a handful of statements, each of which may meet the stall.
        assert!(lag < LAG + 5 * stall, "{lag:?}, {stall:?}");
    });
}

#[test]
fn sabotaged_an_id_cursor_loses_rows() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let report = run(fixture, Mode::ForgetHoles).await;

        println!("F13 sabotaged: {}", report.findings);
        assert!(!report.findings.lost.is_empty(), "{}", report.findings);
    });
}
