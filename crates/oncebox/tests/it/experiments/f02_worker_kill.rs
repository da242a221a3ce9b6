//! F02 worker-kill: consumer processes are killed while they handle messages of
//! a broker. Nothing is lost, nothing takes effect twice, the sums add up.
//!
//! Sabotage: workers that acknowledge before they commit.

use std::sync::Arc;

use oncebox::Order;
use oncebox_conformance::run::on_store;

use super::children::Role;
use super::kills::{Plan, Victims};
use super::link::{Link, NatsLink, RabbitLink};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground;

fn plan(worker: Role) -> Plan {
    Plan {
        case: "F02",
        relays: (Role::Relay, 1),
        workers: (worker, 2),
        victims: Victims::Workers,
        kills: 8,
        messages: 480,
        accounts: 40,
        // Workers that share the queue: every one of them has something to lose.
        order: Order::None,
    }
}

async fn holds<F: Ground, L: Link>(fixture: Arc<F>) {
    let Some(findings) = plan(Role::Worker).run::<F, L>(&fixture).await else { return };

    findings.assert_clean();
}

async fn is_found_out<F: Ground, L: Link>(fixture: Arc<F>) {
    let Some(findings) = plan(Role::EagerWorker).run::<F, L>(&fixture).await else { return };

    assert!(!findings.lost.is_empty(), "{findings}");
}

#[test]
fn killed_workers_lose_and_double_nothing_between_rabbitmq_and_postgres() {
    on_store::<PostgresFixture, _, _>(holds::<_, RabbitLink>);
}

#[test]
fn killed_workers_lose_and_double_nothing_between_nats_and_postgres() {
    on_store::<PostgresFixture, _, _>(holds::<_, NatsLink>);
}

#[test]
fn killed_workers_lose_and_double_nothing_between_rabbitmq_and_sqlite() {
    on_store::<SqliteFixture, _, _>(holds::<_, RabbitLink>);
}

#[test]
fn killed_workers_lose_and_double_nothing_between_nats_and_sqlite() {
    on_store::<SqliteFixture, _, _>(holds::<_, NatsLink>);
}

#[test]
fn sabotaged_workers_that_acknowledge_before_the_commit_lose_messages_of_rabbitmq() {
    on_store::<SqliteFixture, _, _>(is_found_out::<_, RabbitLink>);
}

#[test]
fn sabotaged_workers_that_acknowledge_before_the_commit_lose_messages_of_nats() {
    on_store::<PostgresFixture, _, _>(is_found_out::<_, NatsLink>);
}
