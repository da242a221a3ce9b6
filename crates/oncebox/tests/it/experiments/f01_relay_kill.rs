//! F01 relay-kill: relay processes are killed while messages flow to a broker.
//! Nothing is lost, doubled or swapped, and what a dead relay held is soon
//! another's.
//!
//! Sabotage: relays that settle before the broker has confirmed.

use std::sync::Arc;

use oncebox::Order;
use oncebox_conformance::Findings;
use oncebox_conformance::run::on_store;

use super::children::Role;
use super::kills::{Plan, Scene, Victims};
use super::link::{Link, NatsLink, Place, RabbitLink};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground;

async fn run<F: Ground, L: Link>(fixture: &Arc<F>, relay: Role, kills: usize) -> Option<Findings> {
    let plan = Plan {
        case: "F01",
        relays: (relay, 2),
        workers: (Role::Worker, 1),
        victims: Victims::Relays,
        kills,
        messages: 30 * i64::try_from(kills).unwrap(),
        order: Order::SingleActive,
    };
    let place = Place::shared::<L>()?;
    let mut scene = Scene::open::<L>(fixture, &place, plan).await;
    scene.start();
    scene.kill_all().await;
    let findings = scene.judge().await;
    L::clean(&place).await;
    Some(findings)
}

async fn holds<F: Ground, L: Link>(fixture: Arc<F>) {
    let Some(findings) = run::<F, L>(&fixture, Role::Relay, 8).await else { return };

    findings.assert_clean();
}

async fn is_found_out<F: Ground, L: Link>(fixture: Arc<F>) {
    let Some(findings) = run::<F, L>(&fixture, Role::HastyRelay, 8).await else { return };

    assert!(!findings.lost.is_empty(), "{findings}");
}

#[test]
fn killed_relays_lose_double_and_swap_nothing_from_postgres_to_rabbitmq() {
    on_store::<PostgresFixture, _, _>(holds::<_, RabbitLink>);
}

#[test]
fn killed_relays_lose_double_and_swap_nothing_from_postgres_to_nats() {
    on_store::<PostgresFixture, _, _>(holds::<_, NatsLink>);
}

#[test]
fn killed_relays_lose_double_and_swap_nothing_from_sqlite_to_rabbitmq() {
    on_store::<SqliteFixture, _, _>(holds::<_, RabbitLink>);
}

#[test]
fn killed_relays_lose_double_and_swap_nothing_from_sqlite_to_nats() {
    on_store::<SqliteFixture, _, _>(holds::<_, NatsLink>);
}

#[test]
fn sabotaged_relays_that_settle_before_the_confirm_lose_messages_to_rabbitmq() {
    on_store::<PostgresFixture, _, _>(is_found_out::<_, RabbitLink>);
}

#[test]
fn sabotaged_relays_that_settle_before_the_confirm_lose_messages_to_nats() {
    on_store::<SqliteFixture, _, _>(is_found_out::<_, NatsLink>);
}
