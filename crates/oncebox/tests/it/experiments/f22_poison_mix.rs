//! F22 poison-mix: messages whose handler fails, panics, never ends, aborts,
//! overflows its stack or asks for more memory than there is, among healthy
//! ones. Whoever runs them is started again whenever it dies or hangs. Each
//! poison is dead after exactly its attempts; every healthy message takes
//! effect once.
//!
//! Sabotage: attempts that are counted when the body is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox::{DeadLetter, Depot, LetterFilter, Letters, Message as _};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::Posted;
use oncebox_conformance::size::sized;
use oncebox_conformance::{Findings, Ledger};

use super::bodies::HANDLER;
use super::booking::operation;
use super::children::Killed;
use super::kills::unordered;
use super::workshop::{Orders, Role, Surroundings, Workshop, deposit, inbox, run_of};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground;

const ATTEMPTS: u32 = 3;
/// What goes wrong, and whether whoever runs it survives that.
const POISONS: [(&str, bool); 6] = [
    ("error", true),
    ("panic", true),
    ("loop", false),
    ("abort", false),
    ("overflow", false),
    ("huge", false),
];
/// How many there are of each.
fn of_each() -> usize {
    sized(1, 33)
}

fn poisons() -> usize {
    POISONS.len() * of_each()
}

fn healthy() -> i64 {
    sized(94, 19_800)
}

/// A process that gets nowhere for this long while it runs what never ends hangs.
const HANGS: Duration = Duration::from_secs(3);
/// Another one may only be slow.
const SLOW: Duration = Duration::from_secs(15);
/// All poison is buried by then.
fn limit() -> Duration {
    sized(Duration::from_secs(180), Duration::from_secs(3_000))
}

/// How often somebody looks after it.
fn look() -> Duration {
    sized(Duration::from_millis(50), Duration::from_millis(250))
}

const fn orders(role: Role, seats: usize) -> Orders {
    Orders {
        role,
        lease: Duration::from_millis(600),
        pause: Duration::from_millis(2),
        timeout: Duration::from_millis(500),
        attempts: Some(ATTEMPTS),
        seats: (seats, 16),
    }
}

/// A process that is started again whenever it dies or hangs.
struct Tended<'w> {
    shop: &'w Workshop,
    orders: Orders,
    child: Killed,
    deaths: usize,
    hangs: usize,
    moved: (usize, Instant),
    /// Runs of what never ends, before this process.
    loops: usize,
}

impl<'w> Tended<'w> {
    fn start(shop: &'w Workshop, orders: Orders) -> Self {
        let child = shop.start(orders, &Surroundings::Bounded);
        Self { shop, orders, child, deaths: 0, hangs: 0, moved: (0, Instant::now()), loops: 0 }
    }

    /// `progress` grows with everything that happens, `loops` with every run of what never ends.
    fn tend(&mut self, progress: usize, loops: usize) {
        if progress != self.moved.0 {
            self.moved = (progress, Instant::now());
        }
        let is_alive = self.child.is_alive();
        let hangs = self.moved.1.elapsed() > if loops > self.loops { HANGS } else { SLOW };
        if is_alive && !hangs {
            return;
        }
        if is_alive {
            self.hangs += 1;
        } else {
            self.deaths += 1;
        }
        (self.moved.1, self.loops) = (Instant::now(), loops);
        self.child = self.shop.start(self.orders, &Surroundings::Bounded);
    }
}

/// The poison, spread among healthy messages.
fn messages() -> Vec<Posted> {
    let mut dice = Dice::new(Dice::seed("F22"));
    let healthy = (0..healthy()).map(|n| format!("well-{}", n % 7));
    let mut accounts: Vec<String> = healthy.collect();
    for (poison, _) in POISONS.into_iter().cycle().take(poisons()) {
        accounts.insert(dice.below(accounts.len()), poison.to_owned());
    }
    accounts.iter().zip(0..).map(|(account, number)| Posted::on(account, number)).collect()
}

fn poison_of(message: &Posted) -> Option<(&'static str, bool)> {
    POISONS.into_iter().find(|(poison, _)| message.account.as_deref() == Some(poison))
}

async fn letters<F: Ground>(fixture: &F) -> Vec<DeadLetter>
where
    F::Store: Letters,
{
    fixture.store().letters(&LetterFilter::default(), 2 * poisons()).await.unwrap_or_default()
}

/// What became of everything, when all that can happen has.
async fn work_off<F: Ground>(
    fixture: &Arc<F>,
    shop: &Workshop,
    messages: &[Posted],
    orders: Orders,
) -> Findings
where
    F::Store: Depot + Letters,
{
    deposit(&inbox(fixture), messages).await;
    let healthy = messages.iter().filter(|message| poison_of(message).is_none());
    let expected: Vec<_> = healthy.map(|message| operation(HANDLER, message)).collect();
    let endless = messages.iter().filter(|message| message.account.as_deref() == Some("loop"));
    let endless = endless.map(run_of).collect();
    let (mut tended, start) = (Tended::start(shop, orders), Instant::now());
    loop {
        let (effects, dead) = (fixture.effects().await.len(), letters(&**fixture).await.len());
        if effects >= expected.len() && dead >= poisons() {
            break;
        }
        assert!(start.elapsed() < limit(), "{effects} effects, {dead} letters, {:?}", shop.diary());
        let loops = shop.runs_among(&endless);
        tended.tend(effects + dead + shop.diary().len(), loops);
        tokio::time::sleep(look()).await;
    }
    // Whatever is not over yet would show now.
    tokio::time::sleep(orders.lease * 2).await;
    let (deaths, hangs) = (tended.deaths, tended.hangs);
    let findings = unordered(Ledger::check(&expected, &fixture.effects().await));
    let took = start.elapsed();
    println!("F22 {}: {deaths} deaths, {hangs} hangs in {took:?}, {findings}", F::GUARANTEES.name);
    findings
}

async fn holds<F: Ground>(fixture: Arc<F>, seats: usize)
where
    F::Store: Depot + Letters,
{
    let (shop, messages) = (Workshop::open(&*fixture), messages());

    let findings = work_off(&fixture, &shop, &messages, orders(Role::Worker, seats)).await;

    findings.assert_clean();
    let letters = letters(&*fixture).await;
    assert_eq!(letters.len(), poisons(), "no healthy message is buried");
    for letter in letters {
        let message = Posted::decode(&letter.envelope.payload).unwrap();
        let (poison, survived) = poison_of(&message).expect("only poison is buried");
        let ran = u32::try_from(shop.runs_of(&message)).unwrap();
        assert_eq!(letter.attempts, ATTEMPTS, "{poison}");
        // An attempt is counted before its body: beside a killer it may be over before it began.
        assert!(ran == ATTEMPTS || seats > 1 && ran < ATTEMPTS, "{poison} ran {ran} times");
        let code = if survived { "attempts_exhausted" } else { "process_death" };
        assert!(letter.code == code || survived && seats > 1, "{poison}: {}", letter.code);
    }
}

/// A killer that is counted too late runs oftener than allowed, and is not buried.
async fn is_found_out<F: Ground>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let (shop, killer) = (Workshop::open(&*fixture), Posted::on("abort", 1));
    deposit(&inbox(&fixture), std::slice::from_ref(&killer)).await;
    let (mut tended, start) = (Tended::start(&shop, orders(Role::CountsLate, 1)), Instant::now());
    while start.elapsed() < limit() / 2 && shop.runs_of(&killer) <= 2 * ATTEMPTS as usize {
        tended.tend(shop.diary().len(), 0);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    println!("F22 sabotaged: {} runs in {:?}", shop.runs_of(&killer), start.elapsed());
    assert!(shop.runs_of(&killer) > 2 * ATTEMPTS as usize);
    assert_eq!(letters(&*fixture).await.len(), 0);
}

#[test]
fn poison_is_buried_after_its_attempts_and_harms_nobody_beside_it_on_postgres() {
    on_store::<PostgresFixture, _, _>(|fixture| holds(fixture, 4));
}

#[test]
fn poison_is_buried_after_its_attempts_and_harms_nobody_beside_it_on_sqlite() {
    on_store::<SqliteFixture, _, _>(|fixture| holds(fixture, 4));
}

#[test]
fn poison_that_is_run_alone_runs_exactly_as_often_as_allowed_on_postgres() {
    on_store::<PostgresFixture, _, _>(|fixture| holds(fixture, 1));
}

#[test]
fn poison_that_is_run_alone_runs_exactly_as_often_as_allowed_on_sqlite() {
    on_store::<SqliteFixture, _, _>(|fixture| holds(fixture, 1));
}

#[test]
fn sabotaged_a_killer_that_is_counted_after_its_run_is_never_buried() {
    on_store::<PostgresFixture, _, _>(is_found_out);
}
