//! F03 all-kill: relays, workers and the broker itself are killed, and nothing
//! is lost or takes effect twice.
//!
//! Sabotage: workers that know only from memory what they have handled.

use std::sync::Arc;
use std::time::Duration;

use oncebox::Order;
use oncebox_conformance::Findings;
use oncebox_conformance::run::on_store;
use oncebox_conformance::server::Server;

use super::children::Role;
use super::kills::{Plan, Scene, Victims};
use super::link::{Link, NatsLink, Place, RabbitLink};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground;

/// Kills of children before, between and after those of the broker.
const CHILDREN: usize = 4;
const SHARE: i64 = 40;

async fn run<F: Ground, L: Link>(fixture: &Arc<F>, worker: Role, broker_kills: usize) -> Option<Findings> {
    let plan = Plan {
        case: "F03",
        relays: (Role::Relay, 2),
        workers: (worker, 2),
        victims: Victims::All,
        kills: CHILDREN * (broker_kills + 1) + broker_kills,
        messages: 0,
        accounts: 40,
        order: Order::None,
    };
    let mut server = Server::start(L::BRAND, "F03").await?;
    let place = Place::new(server.url());
    let mut scene = Scene::open::<L>(fixture, &place, plan).await;
    server.settle().await;
    scene.start();
    for life in 0..=broker_kills {
        for _ in 0..CHILDREN {
            scene.kill_one(SHARE).await;
        }
        if life < broker_kills {
            server.kill().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            server.resume().await;
        }
    }
    Some(scene.judge().await)
}

async fn holds<F: Ground, L: Link>(fixture: Arc<F>) {
    let kills = if L::BRAND == RabbitLink::BRAND { 1 } else { 2 };

    let Some(findings) = run::<F, L>(&fixture, Role::Worker, kills).await else { return };

    findings.assert_clean();
}

async fn is_found_out<F: Ground, L: Link>(fixture: Arc<F>) {
    let Some(findings) = run::<F, L>(&fixture, Role::ForgetfulWorker, 3).await else { return };

    assert!(!findings.doubled.is_empty(), "{findings}");
}

#[test]
fn kills_of_everybody_lose_and_double_nothing_on_postgres_and_rabbitmq() {
    on_store::<PostgresFixture, _, _>(holds::<_, RabbitLink>);
}

#[test]
fn kills_of_everybody_lose_and_double_nothing_on_postgres_and_nats() {
    on_store::<PostgresFixture, _, _>(holds::<_, NatsLink>);
}

#[test]
fn kills_of_everybody_lose_and_double_nothing_on_sqlite_and_nats() {
    on_store::<SqliteFixture, _, _>(holds::<_, NatsLink>);
}

#[test]
fn sabotaged_workers_that_remember_in_memory_only_double_effects() {
    on_store::<PostgresFixture, _, _>(is_found_out::<_, NatsLink>);
}
