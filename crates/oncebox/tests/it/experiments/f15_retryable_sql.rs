//! F15 retryable-sql: about three units in ten meet a serialization failure, a
//! deadlock or a busy database. None of that reaches the user, and none of it
//! spends an attempt.
//!
//! Sabotage: no reruns, and a transport that counts every redelivery.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::inbox::InboxOptions;
use oncebox::{Context, Envelope, HandlerError, Inbox, Mailbox, Outcome, Store};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::run::on_store;
use oncebox_conformance::{Findings, StoreFixture};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, SqliteConnection, SqlitePool};
use tokio::sync::Barrier;

use super::bodies::{Bodies, tireless};
use super::crowd::{Crowd, Twist, Watched};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

const UNITS: usize = 120;
const FAULTY_IN_TEN: usize = 3;
/// The first units are partners in deadlocks, two by two.
const DEADLOCKED: usize = 8;
const AT_ONCE: usize = 8;

/// A way to make the database refuse a unit that is perfectly fine.
trait Trap: StoreFixture {
    type Snare: Send + Sync + 'static;

    fn lay(&self) -> impl Future<Output = Self::Snare> + Send;
    fn impatient_or_not(&self) -> Self::Store;
    /// Fails as the database would; only called in the first run of a faulty unit.
    fn spring(
        snare: &Self::Snare,
        tx: &mut <Self::Store as Store>::Tx,
        number: usize,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
    /// Troubles from outside while the units run.
    fn disturb(snare: &Self::Snare) -> impl Future<Output = ()> + Send;
    fn lift(&self, snare: &Self::Snare) -> impl Future<Output = ()> + Send;
}

/// A second connection to the file, which never waits.
struct Rival(SqlitePool);

impl Trap for SqliteFixture {
    type Snare = Rival;

    async fn lay(&self) -> Rival {
        let options = (*self.store().pool().connect_options()).clone().busy_timeout(Duration::ZERO);
        Rival(SqlitePoolOptions::new().max_connections(2).connect_with(options).await.unwrap())
    }

    fn impatient_or_not(&self) -> Self::Store {
        self.impatient()
    }

    async fn spring(rival: &Rival, _tx: &mut SqliteConnection, _number: usize) -> Result<(), HandlerError> {
        // The unit holds the write lock, so this is a genuine SQLITE_BUSY.
        sqlx::query("DELETE FROM ledger WHERE 0").execute(&rival.0).await?;
        Ok(())
    }

    /// Another process keeps the write lock for longer than a unit waits for it.
    async fn disturb(rival: &Rival) {
        for _ in 0..3 {
            let Ok(tx) = rival.0.begin_with("BEGIN IMMEDIATE").await else { continue };
            tokio::time::sleep(Duration::from_millis(300)).await;
            tx.rollback().await.unwrap();
        }
    }

    async fn lift(&self, rival: &Rival) {
        rival.0.close().await;
    }
}

/// Two rows for each pair of partners, and where they wait for each other.
struct Rows {
    schema: String,
    meetings: Vec<Barrier>,
}

impl Trap for PostgresFixture {
    type Snare = Rows;

    async fn lay(&self) -> Rows {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let schema = format!("f15_{}_{}_{number}", std::process::id(), now.subsec_nanos());
        let text = format!(
            "CREATE SCHEMA {schema}; CREATE TABLE {schema}.row (id int PRIMARY KEY, n int NOT NULL); \
             INSERT INTO {schema}.row SELECT g, 0 FROM generate_series(0, {DEADLOCKED}) g"
        );
        sqlx::raw_sql(AssertSqlSafe(text)).execute(self.store().pool()).await.unwrap();
        Rows { schema, meetings: (0..DEADLOCKED / 2).map(|_| Barrier::new(2)).collect() }
    }

    /// The server looks for deadlocks after a second, so a unit must wait longer than that.
    fn impatient_or_not(&self) -> Self::Store {
        self.store()
    }

    async fn spring(rows: &Rows, tx: &mut PgConnection, number: usize) -> Result<(), HandlerError> {
        if number >= DEADLOCKED {
            let code = if number.is_multiple_of(2) { "40001" } else { "40P01" };
            let text = format!("DO $$ BEGIN RAISE EXCEPTION 'forced' USING ERRCODE = '{code}'; END $$");
            sqlx::raw_sql(AssertSqlSafe(text)).execute(tx).await?;
            return Ok(());
        }
        // A real one: partners take the same two rows in opposite order.
        let (mine, theirs) = (number, number ^ 1);
        for row in [mine, theirs] {
            let text = format!("UPDATE {}.row SET n = n + 1 WHERE id = $1", rows.schema);
            sqlx::query(AssertSqlSafe(text)).bind(i32::try_from(row)?).execute(&mut *tx).await?;
            if row == mine {
                let meeting = rows.meetings[number / 2].wait();
                tokio::time::timeout(Duration::from_secs(10), meeting).await?;
            }
        }
        Ok(())
    }

    async fn disturb(_rows: &Rows) {}

    async fn lift(&self, rows: &Rows) {
        let text = format!("DROP SCHEMA {} CASCADE", rows.schema);
        sqlx::raw_sql(AssertSqlSafe(text)).execute(self.store().pool()).await.unwrap();
    }
}

struct Victim<F: Trap> {
    snare: Arc<F::Snare>,
    faulty: HashSet<usize>,
    sprung: Arc<AtomicUsize>,
}

impl<F: Trap> Twist<F> for Victim<F> {
    async fn after(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        number: usize,
        run: usize,
    ) -> Result<(), HandlerError> {
        if !self.faulty.contains(&number) || run > 1 {
            return Ok(());
        }
        let sprung = F::spring(&self.snare, cx.tx(), number).await;
        self.sprung.fetch_add(usize::from(sprung.is_err()), Ordering::SeqCst);
        sprung
    }
}

struct Trial {
    findings: Findings,
    surfaced: HashMap<String, String>,
    highest_attempt: u32,
    sprung: usize,
}

impl Trial {
    fn check(&self) -> Result<(), String> {
        if self.sprung < UNITS * FAULTY_IN_TEN / 20 {
            return Err(format!("only {} faults: this was no trial", self.sprung));
        }
        if let Some((id, outcome)) = self.surfaced.iter().next() {
            return Err(format!("{} surfaced, for instance {id}: {outcome}", self.surfaced.len()));
        }
        if self.highest_attempt != 1 {
            return Err(format!("attempts were burnt: one unit was run as attempt {}", self.highest_attempt));
        }
        if !self.findings.is_clean() {
            return Err(self.findings.to_string());
        }
        Ok(())
    }
}

async fn trial<F: Trap>(fixture: Arc<F>, sabotage: bool) -> Trial {
    let mut dice = Dice::new(Dice::seed("f15_retryable_sql"));
    let faulty = (0..UNITS).filter(|number| *number < DEADLOCKED || dice.below(10) < FAULTY_IN_TEN).collect();
    let (bodies, sprung) = (Bodies::default(), Arc::new(AtomicUsize::new(0)));
    let surfaced: Arc<Mutex<HashMap<_, _>>> = Arc::default();
    let snare = Arc::new(fixture.lay().await);
    let victim = Victim::<F> { snare: Arc::clone(&snare), faulty, sprung: Arc::clone(&sprung) };
    let reruns = if sabotage { 0 } else { InboxOptions::default().reruns };
    let options = InboxOptions { reruns, retry: tireless(), ..InboxOptions::default() };
    let inbox = Inbox::builder(fixture.impatient_or_not(), "bookings");
    let inbox = inbox.handler(Watched::new(&fixture, &bodies, victim)).options(options).build().unwrap();
    let crowd = Crowd::of(UNITS);
    let units = crowd.deliver(AT_ONCE, |envelope| {
        let (inbox, surfaced) = (inbox.clone(), Arc::clone(&surfaced));
        async move { one(&inbox, &envelope, &surfaced, sabotage).await }
    });
    tokio::join!(units, F::disturb(&snare));
    let findings = crowd.findings(&*fixture).await;
    fixture.lift(&snare).await;
    let surfaced = std::mem::take(&mut *surfaced.lock().unwrap());
    let sprung = sprung.load(Ordering::SeqCst);
    Trial { findings, surfaced, highest_attempt: bodies.highest_attempt(), sprung }
}

/// Delivers as a transport does, and notes every outcome that is anybody's business.
async fn one<S: Mailbox + oncebox::Dedup>(
    inbox: &Inbox<S>,
    envelope: &Envelope,
    surfaced: &Mutex<HashMap<String, String>>,
    counts_everything: bool,
) {
    let mut attempt = 1;
    loop {
        match inbox.receive(envelope.clone(), attempt).await.single().unwrap() {
            Outcome::Done { .. } | Outcome::Duplicate { .. } => return,
            Outcome::Busy => attempt += u32::from(counts_everything),
            other => {
                surfaced.lock().unwrap().insert(envelope.id.clone(), format!("{other:?}"));
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn holds<F: Trap>() {
    on_store::<F, _, _>(|fixture| async move { trial(fixture, false).await.check().unwrap() });
}

fn is_noticed<F: Trap>() {
    on_store::<F, _, _>(|fixture| async move {
        let complaint = trial(fixture, true).await.check().unwrap_err();
        assert!(complaint.contains("attempts were burnt"), "{complaint}");
    });
}

#[test]
fn what_the_database_wants_again_is_run_again_unseen_on_sqlite() {
    holds::<SqliteFixture>();
}

#[test]
fn what_the_database_wants_again_is_run_again_unseen_on_postgres() {
    holds::<PostgresFixture>();
}

#[test]
fn attempts_burnt_by_the_database_are_noticed_on_sqlite() {
    is_noticed::<SqliteFixture>();
}

#[test]
fn attempts_burnt_by_the_database_are_noticed_on_postgres() {
    is_noticed::<PostgresFixture>();
}
