//! F24 disk-full: the disk under a durable inbox on SQLite is full for a while,
//! again and again, while messages are stored and worked on. What was accepted
//! takes effect once, and no attempt is spent on what is nobody's fault.
//!
//! Sabotage: a handler that takes a full disk for a failure of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox::verdict::RetryPolicy;
use oncebox::{
    Context, Handler, HandlerError, HandlerKey, Inbox, LetterFilter, Letters as _, Verdict, WorkOptions,
    Worker,
};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::sample::{DESTINATION, Posted};
use oncebox_conformance::size::sized;
use oncebox_conformance::{Findings, StoreFixture as _};
use oncebox_stores::sqlite::{SqliteStore, migrate};
use sqlx::SqliteConnection;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::bodies::{Bodies, HANDLER, arriving, effect, tireless};
use super::workshop::{rest, settled};
use crate::bad_input::place::SmallDisk;
use crate::conformance::sqlite::SqliteFixture;

fn times() -> i64 {
    sized(8, 20)
}

/// How long the disk is full.
fn full_for() -> Duration {
    sized(Duration::from_millis(400), Duration::from_secs(30))
}

/// From room on the disk to the last message stored; in every run of the tests others use the machine, too.
fn recovery() -> Duration {
    sized(Duration::from_secs(30), Duration::from_secs(10))
}
/// Messages per outage.
const SHARE: i64 = 12;
/// More than the whole disk.
const TOO_MUCH: usize = 8 << 20;

struct Writing {
    fixture: Arc<SqliteFixture>,
    bodies: Bodies,
    /// How often the disk has been full.
    outages: watch::Receiver<i64>,
    /// Does not say that it was the disk.
    is_sabotaged: bool,
}

impl Handler<SqliteConnection> for Writing {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, SqliteConnection>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        let _body = self.bodies.enter(&cx.envelope().id, cx.attempt());
        let entry = effect(&cx.envelope().id, &message);
        self.fixture.effect(cx.tx(), &entry).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        if message.sequence % SHARE == 0 {
            // The disk becomes full under it, and not before or after.
            self.outages.clone().wait_for(|full| *full > message.sequence / SHARE).await.ok();
        }
        // What does not fit into the cache is written at once, and not only by the commit.
        sqlx::raw_sql("PRAGMA cache_size = 1").execute(&mut *cx.tx()).await?;
        let filling = sqlx::query("INSERT INTO filling (bytes) VALUES (zeroblob(20000))");
        match filling.execute(cx.tx()).await {
            Err(error) if self.is_sabotaged => Err(HandlerError::retry(error.to_string())),
            done => Ok(done.map(drop)?),
        }
    }
}

struct Report {
    findings: Findings,
    /// Deposits that were refused and bodies that ran in vain.
    in_vain: usize,
    letters: usize,
    highest_attempt: u32,
    /// The longest recovery.
    slowest: Duration,
}

/// Delivers until the message is stored; tells how often it was refused.
async fn store_one(inbox: &Inbox<SqliteStore>, message: &Posted) -> usize {
    let envelope = arriving(&message.sequence.to_string(), message);
    let (started, mut refused) = (Instant::now(), 0);
    while started.elapsed() < full_for() + Duration::from_secs(60) {
        match inbox.deliver(envelope.clone(), 1).await {
            Verdict::Done => return refused,
            Verdict::Retry { spent: false, after } => tokio::time::sleep(after).await,
            other => panic!("a full disk is nobody's fault: {other:?}"),
        }
        refused += 1;
    }
    panic!("{} was never stored", envelope.id);
}

async fn run(disk: &SmallDisk, is_sabotaged: bool) -> Report {
    let store = SqliteStore::create(disk.file("app.db").to_str().unwrap()).await.unwrap();
    migrate::up(&store).await.unwrap();
    let tables = "CREATE TABLE filling (bytes BLOB); \
                  CREATE TABLE ledger (number INTEGER PRIMARY KEY AUTOINCREMENT, handler TEXT NOT NULL, \
                  id TEXT NOT NULL, account TEXT, sequence INTEGER NOT NULL, amount INTEGER NOT NULL)";
    sqlx::raw_sql(tables).execute(store.pool()).await.unwrap();
    let fixture = Arc::new(SqliteFixture { store: store.clone(), folder: disk.file("") });
    let bodies = Bodies::default();
    let (full, outages) = watch::channel(0);
    let writing = Writing { fixture: Arc::clone(&fixture), bodies: bodies.clone(), outages, is_sabotaged };
    let retry = RetryPolicy { max_attempts: Some(2), ..tireless() };
    let inbox = Inbox::builder(store.clone(), DESTINATION).handler(writing).durable().retry(retry);
    let inbox = inbox.build().unwrap();
    let options = WorkOptions { poll: Duration::from_millis(20), ..WorkOptions::default() };
    let stop = CancellationToken::new();
    let working = tokio::spawn(Worker::new(&inbox, options).unwrap().run(stop.clone()));
    let (mut dice, mut refused, mut expected) = (Dice::new(Dice::seed("F24")), 0, Vec::new());
    let mut slowest = Duration::ZERO;
    for outage in 0..times() {
        let messages: Vec<Posted> =
            (outage * SHARE..(outage + 1) * SHARE).map(|n| Posted::on(&format!("account-{n}"), n)).collect();
        expected.extend(messages.iter().map(|message| effect(&message.sequence.to_string(), message)));
        let (inbox, deposits) = (inbox.clone(), messages);
        let mut seen = full.subscribe();
        let storing = tokio::spawn(async move {
            let (before, while_full) = deposits.split_at(deposits.len() / 2);
            let mut refused = 0;
            for message in before {
                refused += store_one(&inbox, message).await;
            }
            seen.wait_for(|full| *full > outage).await.ok();
            for message in while_full {
                refused += store_one(&inbox, message).await;
            }
            refused
        });
        while bodies.runs_of(&(outage * SHARE).to_string()) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(dice.below(40) as u64)).await;
        std::fs::write(disk.file("ballast"), vec![0; TOO_MUCH]).unwrap_err();
        full.send_replace(outage + 1);
        tokio::time::sleep(full_for()).await;
        std::fs::remove_file(disk.file("ballast")).unwrap();
        let healed = Instant::now();
        refused += storing.await.unwrap();
        slowest = slowest.max(healed.elapsed());
        // Room for the next ones, as somebody would make it.
        sqlx::raw_sql("DELETE FROM filling").execute(store.pool()).await.ok();
    }
    let findings = settled(&*fixture, &expected, rest(is_sabotaged)).await;
    stop.cancel();
    assert!(working.await.unwrap());
    let letters = store.letters(&LetterFilter::default(), 1000).await.unwrap().len();
    println!(
        "F24: full {} times, stored again within {slowest:?}, {refused} deposits refused, {} bodies, {letters} letters, {findings}",
        times(),
        bodies.total()
    );
    store.pool().close().await;
    let in_vain = refused + bodies.total().saturating_sub(expected.len());
    Report { findings, in_vain, letters, highest_attempt: bodies.highest_attempt(), slowest }
}

/// On a disk of its own, if there can be one.
fn on_small_disk(case: &str, is_sabotaged: bool) -> Option<Report> {
    let disk = SmallDisk::mount(case)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    Some(runtime.block_on(run(&disk, is_sabotaged)))
}

#[test]
fn a_full_disk_costs_stored_messages_nothing() {
    let Some(report) = on_small_disk("F24", false) else { return };

    report.findings.assert_clean();
    assert_eq!((report.letters, report.highest_attempt), (0, 1), "no attempt is spent");
    assert!(report.in_vain > 0, "the disk was full");
    assert!(report.slowest <= recovery(), "{:?}", report.slowest);
}

#[test]
fn sabotaged_a_handler_that_hides_the_full_disk_spends_attempts() {
    let Some(report) = on_small_disk("F24 sabotaged", true) else { return };

    assert!(report.highest_attempt > 1 || report.letters > 0, "{} attempts", report.highest_attempt);
}
