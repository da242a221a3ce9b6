//! F01 relay-kill: relay processes are killed while messages flow to a broker.
//! Nothing is lost, doubled or swapped, and what a dead relay held is soon
//! another's.
//!
//! Sabotage: relays that settle before the broker has confirmed.

use std::sync::Arc;

use oncebox::Order;
use oncebox_conformance::run::on_store;

use super::children::Role;
use super::kills::{Plan, Victims};
use super::link::{Link, NatsLink, RabbitLink};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground;

fn plan(relay: Role) -> Plan {
    Plan {
        case: "F01",
        relays: (relay, 2),
        workers: (Role::Worker, 1),
        victims: Victims::Relays,
        kills: 8,
        messages: 240,
        accounts: 40,
        order: Order::SingleActive,
    }
}

async fn holds<F: Ground, L: Link>(fixture: Arc<F>) {
    let Some(findings) = plan(Role::Relay).run::<F, L>(&fixture).await else { return };

    findings.assert_clean();
}

async fn is_found_out<F: Ground, L: Link>(fixture: Arc<F>) {
    let Some(findings) = plan(Role::HastyRelay).run::<F, L>(&fixture).await else { return };

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
