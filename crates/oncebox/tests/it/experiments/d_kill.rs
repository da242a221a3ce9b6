//! D rows: worker processes of the durable inbox are killed while they work on
//! stored messages. Nothing is lost, nothing takes effect twice.
//!
//! Sabotage: workers that complete a delivery in a transaction of its own,
//! before the handler's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox::{Depot, LetterFilter, Letters};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::Posted;
use oncebox_conformance::size::sized;
use oncebox_conformance::{Entry, Findings};

use super::bodies::HANDLER;
use super::booking::operation;
use super::children::Killed;
use super::workshop::{Orders, Role, Surroundings, Workshop, deposit, inbox, settled};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground;

const WORKERS: usize = 2;
/// Messages per kill.
const SHARE: i64 = 40;
fn kills() -> i64 {
    sized(12, 250)
}

/// Nobody works although there is work.
const IDLE: Duration = Duration::from_secs(20);

const fn orders(role: Role) -> Orders {
    Orders {
        role,
        lease: Duration::from_secs(1),
        // Long enough for a kill to find it.
        pause: Duration::from_millis(10),
        timeout: Duration::from_secs(10),
        // A death counts as an attempt, and these are nobody's fault.
        attempts: None,
        seats: (4, 16),
    }
}

/// Stores messages and kills whoever works on them, again and again.
async fn run<F: Ground>(fixture: &Arc<F>, role: Role) -> Findings
where
    F::Store: Depot,
{
    let (shop, inbox) = (Workshop::open(&**fixture), inbox(fixture));
    let mut dice = Dice::new(Dice::seed("D kill"));
    let start = || shop.start(orders(role), &Surroundings::Ordinary);
    let mut children: Vec<Killed> = (0..WORKERS).map(|_| start()).collect();
    let mut expected: Vec<Entry> = Vec::new();
    for round in 0..kills() {
        let numbers = round * SHARE..(round + 1) * SHARE;
        let messages: Vec<Posted> = numbers.map(|n| Posted::on(&format!("account-{}", n % 7), n)).collect();
        let stored = Instant::now();
        deposit(&inbox, &messages).await;
        expected.extend(messages.iter().map(|message| operation(HANDLER, message)));
        let victims = loop {
            let busy = (0..WORKERS).filter(|child| children[*child].was_at_work_since(stored));
            let busy: Vec<usize> = busy.collect();
            if !busy.is_empty() {
                break busy;
            }
            assert!(stored.elapsed() < IDLE, "nobody works in round {round}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        tokio::time::sleep(Duration::from_millis(dice.below(60) as u64)).await;
        // The old one is dead before the new one lives.
        drop(children.swap_remove(*dice.pick(&victims).unwrap()));
        children.push(start());
    }
    let findings = settled(&**fixture, &expected, role.rest()).await;
    let reruns = shop.diary().len() - expected.len().min(shop.diary().len());
    println!("D kill {}: {} kills, {reruns} bodies in vain, {findings}", F::GUARANTEES.name, kills());
    findings
}

async fn holds<F: Ground>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let findings = run(&fixture, Role::Worker).await;

    findings.assert_clean();
    assert_eq!(fixture.store().letters(&LetterFilter::default(), 10).await.unwrap(), []);
}

async fn is_found_out<F: Ground>(fixture: Arc<F>)
where
    F::Store: Depot,
{
    let findings = run(&fixture, Role::SettlesFirst).await;

    assert!(!findings.lost.is_empty(), "{findings}");
}

#[test]
fn killed_workers_of_stored_messages_lose_and_double_nothing_on_postgres() {
    on_store::<PostgresFixture, _, _>(holds);
}

#[test]
fn killed_workers_of_stored_messages_lose_and_double_nothing_on_sqlite() {
    on_store::<SqliteFixture, _, _>(holds);
}

#[test]
fn sabotaged_workers_that_settle_before_the_commit_lose_stored_messages_on_postgres() {
    on_store::<PostgresFixture, _, _>(is_found_out);
}

#[test]
fn sabotaged_workers_that_settle_before_the_commit_lose_stored_messages_on_sqlite() {
    on_store::<SqliteFixture, _, _>(is_found_out);
}
