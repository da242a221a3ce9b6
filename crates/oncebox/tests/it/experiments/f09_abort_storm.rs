//! F09 abort-storm: eight processes get the same message at once, and whoever
//! holds its marker gives up half of the time. The marker passes to exactly one
//! of the waiting copies, until one of them commits.
//!
//! Sabotage: the body swallows what made it give up and answers that all is well.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::{Context, HandlerError, Inbox, Store};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::run::on_store;
use oncebox_conformance::{Findings, StoreFixture};

use super::bodies::{Bodies, tireless};
use super::crowd::{Crowd, Twist, Watched, deliver_copies};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

const IDS: usize = 150;
/// Enough for a broken check to show.
const SABOTAGED_IDS: usize = 20;
/// Messages whose copies fight at the same time.
const AT_ONCE: usize = 3;
const WAITERS: usize = 8;
/// Half of the messages need no second run, so more than this in the middle is a lie about the dice.
const MEDIAN_RERUNS: usize = 3;

#[derive(Clone)]
struct Quitter {
    dice: Arc<Mutex<Dice>>,
    aborts: Arc<AtomicUsize>,
    swallows: bool,
}

impl Quitter {
    fn gives_up(&self) -> bool {
        self.dice.lock().unwrap().once_in(2)
    }
}

impl<F: StoreFixture> Twist<F> for Quitter {
    fn shirks(&self) -> bool {
        self.swallows && self.gives_up()
    }

    async fn after(
        &self,
        _cx: &mut Context<'_, <F::Store as Store>::Tx>,
        _number: usize,
        _run: usize,
    ) -> Result<(), HandlerError> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        if self.swallows || !self.gives_up() {
            return Ok(());
        }
        self.aborts.fetch_add(1, Ordering::SeqCst);
        Err(HandlerError::retry("gave up with the marker in hand"))
    }
}

struct Storm {
    ids: usize,
    findings: Findings,
    overlaps: usize,
    runs: usize,
    aborts: usize,
    median_reruns: usize,
}

impl Storm {
    fn check(&self) -> Result<(), String> {
        if !self.findings.is_clean() {
            return Err(self.findings.to_string());
        }
        if self.overlaps > 0 {
            return Err(format!("{} bodies ran beside a copy of themselves", self.overlaps));
        }
        if self.runs != self.ids + self.aborts {
            return Err(format!("{} runs for {} messages and {} aborts", self.runs, self.ids, self.aborts));
        }
        if self.aborts < self.ids / 3 {
            return Err(format!("only {} aborts: this was no storm", self.aborts));
        }
        if self.median_reruns > MEDIAN_RERUNS {
            return Err(format!("{} reruns in the middle", self.median_reruns));
        }
        Ok(())
    }
}

async fn storm<F: StoreFixture>(fixture: Arc<F>, ids: usize, swallows: bool) -> Storm {
    let dice = Arc::new(Mutex::new(Dice::new(Dice::seed("f09_abort_storm"))));
    let (bodies, aborts) = (Bodies::default(), Arc::new(AtomicUsize::new(0)));
    let quitter = Quitter { dice, aborts: Arc::clone(&aborts), swallows };
    // One inbox would turn copies away before they reach the marker; each of
    // these stands for a process of its own.
    let inboxes: Vec<_> = (0..WAITERS)
        .map(|_| {
            let quitter = Watched::new(&fixture, &bodies, quitter.clone());
            let inbox = Inbox::builder(fixture.store(), "bookings").handler(quitter);
            inbox.retry(tireless()).build().unwrap()
        })
        .collect();
    let crowd = Crowd::of(ids);
    crowd.deliver(AT_ONCE, |envelope| deliver_copies(inboxes.clone(), envelope, WAITERS)).await;
    let mut reruns: Vec<usize> = crowd.effects().iter().map(|entry| bodies.runs_of(&entry.id) - 1).collect();
    reruns.sort_unstable();
    Storm {
        ids,
        findings: crowd.findings(&*fixture).await,
        overlaps: bodies.overlaps(),
        runs: bodies.total(),
        aborts: aborts.load(Ordering::SeqCst),
        median_reruns: reruns[ids / 2],
    }
}

fn holds<F: StoreFixture>() {
    on_store::<F, _, _>(|fixture| async move { storm(fixture, IDS, false).await.check().unwrap() });
}

fn is_noticed<F: StoreFixture>() {
    on_store::<F, _, _>(|fixture| async move {
        let complaint = storm(fixture, SABOTAGED_IDS, true).await.check().unwrap_err();
        assert!(complaint.contains("lost"), "{complaint}");
    });
}

#[test]
fn when_the_holder_gives_up_one_waiting_copy_takes_over_on_sqlite() {
    holds::<SqliteFixture>();
}

#[test]
fn when_the_holder_gives_up_one_waiting_copy_takes_over_on_postgres() {
    holds::<PostgresFixture>();
}

#[test]
fn a_swallowed_abort_is_noticed_on_sqlite() {
    is_noticed::<SqliteFixture>();
}

#[test]
fn a_swallowed_abort_is_noticed_on_postgres() {
    is_noticed::<PostgresFixture>();
}
