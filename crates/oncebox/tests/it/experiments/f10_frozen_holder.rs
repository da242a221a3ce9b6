//! F10 frozen-holder: a process is stopped (SIGSTOP) with handler transactions
//! open. PostgreSQL ends them after the store's idle timeout; whoever waits for
//! their markers gets free and handles the messages, and the process that wakes
//! up later cannot commit.
//!
//! Sabotage: an idle timeout so long that it may as well not be there.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oncebox::{Context, Handler, HandlerError, HandlerKey, Identifier, Inbox, Outcome};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted};
use oncebox_conformance::{Ledger, StoreFixture};
use oncebox_stores::postgres::PostgresStore;
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::bodies::{HANDLER, arriving, effect, tireless};
use crate::conformance::postgres::PostgresFixture;

const CHILD: &str = "experiments::f10_frozen_holder::a_child_holds_its_messages_until_it_is_told_to_go";
const SCHEMA: &str = "ONCEBOX_F10_SCHEMA";
const IDLE: &str = "ONCEBOX_F10_IDLE_MS";
const ROUND: &str = "ONCEBOX_F10_ROUND";
/// Messages held at once by one process.
const HELD: i64 = 8;
const ROUNDS: i64 = 3;
/// Where the numbers of the messages start that nobody holds.
const WARM: i64 = 100;
const IDLE_TIMEOUT: Duration = Duration::from_millis(500);
/// How much longer than the idle timeout a waiter may wait, unless the machine is slow.
const SLACK: Duration = Duration::from_secs(1);
/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn message(round: i64, number: i64) -> (String, Posted) {
    (format!("frozen-{round}-{number}"), Posted::on(&format!("account-{number}"), round))
}

/// Books, and then stays in the transaction for as long as it is told to.
struct Holding {
    schema: String,
    held: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Handler<PgConnection> for Holding {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(&self, cx: &mut Context<'_, PgConnection>, message: Posted) -> Result<(), HandlerError> {
        let entry = effect(&cx.envelope().id, &message);
        let insert = format!(
            "INSERT INTO {}.ledger (handler, id, account, sequence, amount) VALUES ($1, $2, $3, $4, $5)",
            self.schema
        );
        let insert = sqlx::query(AssertSqlSafe(insert)).bind(entry.handler).bind(entry.id).bind(entry.key);
        insert.bind(entry.sequence).bind(entry.amount).execute(cx.tx()).await?;
        self.held.add_permits(1);
        self.go.acquire().await?.forget();
        Ok(())
    }
}

/// An inbox as each of the processes has it; only who is frozen needs an idle timeout of its own.
async fn inbox(
    schema: &str,
    idle: Option<Duration>,
    go: &Arc<Semaphore>,
) -> (Inbox<PostgresStore>, Arc<Semaphore>) {
    let url = std::env::var("ONCEBOX_TEST_POSTGRES_URL").unwrap();
    let store = PostgresStore::connect(&url).await.unwrap();
    let store = store.schema(Identifier::new(schema).unwrap());
    let store = if let Some(idle) = idle { store.idle_timeout(idle) } else { store };
    let held = Arc::new(Semaphore::new(0));
    let holding = Holding { schema: schema.into(), held: Arc::clone(&held), go: Arc::clone(go) };
    (Inbox::builder(store, DESTINATION).retry(tireless()).handler(holding).build().unwrap(), held)
}

/// No test by itself: the process that is frozen.
#[test]
fn a_child_holds_its_messages_until_it_is_told_to_go() {
    let Ok(schema) = std::env::var(SCHEMA) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (idle, round) = (Duration::from_millis(number(IDLE)), number(ROUND).cast_signed());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let go = Arc::new(Semaphore::new(0));
        let (inbox, held) = inbox(&schema, Some(idle), &go).await;
        let (mut handling, holding) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        for number in 0..HELD {
            let (inbox, holding, (id, message)) =
                (inbox.clone(), Arc::clone(&holding), message(round, number));
            handling.spawn(async move {
                loop {
                    let outcome = inbox.receive(arriving(&id, &message), 1).await.single();
                    // A stall may be longer than the idle timeout: once more, until all are held.
                    if holding.load(Ordering::SeqCst) {
                        return outcome;
                    }
                }
            });
        }
        held.acquire_many(u32::try_from(HELD).unwrap()).await.unwrap().forget();
        holding.store(true, Ordering::SeqCst);
        say("holding");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        go.add_permits(100);
        for outcome in handling.join_all().await {
            say(if matches!(outcome, Some(Outcome::Done { .. })) { "committed" } else { "refused" });
        }
        say("over");
    });
}

/// Past the harness, which keeps what tests print.
fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "child: {word}").unwrap();
    out.flush().unwrap();
}

/// The frozen process, from outside. Killed when dropped: a stopped one would stay for ever.
struct Frozen {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Frozen {
    fn start(schema: &str, idle: Duration, round: i64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([CHILD, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(SCHEMA, schema).env(IDLE, idle.as_millis().to_string()).env(ROUND, round.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, lines: BufReader::new(stdout).lines() }
    }

    /// What the child says next; the harness says things too.
    fn next(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the child is alive").unwrap();
            if let Some((_, word)) = line.split_once("child: ") {
                return word.to_owned();
            }
        }
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Wakes it and tells how many of its messages it could commit.
    fn wake(&mut self) -> usize {
        self.signal("-CONT");
        writeln!(self.stdin, "go").unwrap();
        let mut committed = 0;
        loop {
            match self.next().as_str() {
                "committed" => committed += 1,
                "over" => return committed,
                _ => {}
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[derive(Debug, Default)]
struct Report {
    /// Waiters that got free in time.
    freed: usize,
    slowest: Duration,
    /// Messages the woken process could commit all the same.
    stale_commits: usize,
}

/// Tries each message until it is done, and tells how long that took, or that
/// it took too long.
fn receive_all(
    inbox: &Inbox<PostgresStore>,
    round: i64,
    numbers: Range<i64>,
    patience: Duration,
) -> JoinSet<Option<Duration>> {
    let (start, mut receiving) = (Instant::now(), JoinSet::new());
    for number in numbers {
        let (inbox, (id, message)) = (inbox.clone(), message(round, number));
        receiving.spawn(async move {
            while start.elapsed() < patience {
                let outcome = inbox.receive(arriving(&id, &message), 2).await.single();
                if matches!(outcome, Some(Outcome::Done { .. })) {
                    return Some(start.elapsed());
                }
            }
            None
        });
    }
    receiving
}

/// One process frozen, others waiting for what it holds, and its return.
async fn freeze(fixture: &PostgresFixture, idle: Duration, patience: Duration, round: i64) -> Report {
    let go = Arc::new(Semaphore::new(1000));
    let (inbox, _) = inbox(&fixture.schema, None, &go).await;
    // Connections take their time; what is measured is the wait for the holder.
    let warm = receive_all(&inbox, round, WARM..WARM + HELD, PATIENCE).join_all().await;
    assert!(warm.iter().all(Option::is_some));
    let schema = fixture.schema.clone();
    let holder = tokio::task::spawn_blocking(move || {
        let mut frozen = Frozen::start(&schema, idle, round);
        assert_eq!(frozen.next(), "holding");
        frozen.signal("-STOP");
        frozen
    });
    let mut holder = holder.await.unwrap();
    let waiters = receive_all(&inbox, round, 0..HELD, patience);
    let freed: Vec<Duration> = waiters.join_all().await.into_iter().flatten().collect();
    let stale_commits = tokio::task::spawn_blocking(move || holder.wake()).await.unwrap();
    Report { freed: freed.len(), slowest: freed.iter().max().copied().unwrap_or_default(), stale_commits }
}

#[test]
fn waiters_get_free_and_a_frozen_holder_cannot_commit_when_it_wakes() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (mut committed, mut slowest) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let report = freeze(&fixture, IDLE_TIMEOUT, PATIENCE, round).await;

            println!("F10 round {round}: {report:?}");
            assert_eq!((report.freed, report.stale_commits), (8, 0), "{report:?}");
            assert!(report.slowest < PATIENCE, "{report:?}");
            slowest.push(report.slowest);
            let numbers = (0..HELD).chain(WARM..WARM + HELD);
            committed.extend(numbers.map(|n| message(round, n)).map(|(id, message)| effect(&id, &message)));
        }
        // A round may meet a stall of the machine; not every round does.
        assert!(slowest.iter().min() < Some(&(IDLE_TIMEOUT + SLACK)), "{slowest:?}");
        Ledger::check(&committed, &fixture.effects().await).assert_clean();
    });
}

#[test]
fn sabotaged_without_an_idle_timeout_everybody_waits_for_the_frozen_holder() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let report = freeze(&fixture, Duration::from_secs(3600), IDLE_TIMEOUT + SLACK, 0).await;

        assert_eq!((report.freed, report.stale_commits), (0, 8), "{report:?}");
    });
}
