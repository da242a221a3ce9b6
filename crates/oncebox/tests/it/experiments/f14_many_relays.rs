//! F14 many-relays: several relay processes share a log and are killed now and
//! then, and every key keeps its order in the broker.
//!
//! Sabotage: relays that take rows by SKIP LOCKED, whatever their key.

use std::sync::Arc;
use std::time::Duration;

use oncebox::{Consumer, Envelope, Order, Publisher, Subscriber as _};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::size::is_full;
use oncebox_conformance::{Findings, Ledger, StoreFixture as _};
use sqlx::{AssertSqlSafe, PgPool, Row as _};
use tokio_util::sync::CancellationToken;

use super::bodies::HANDLER;
use super::booking::operation;
use super::children::Role;
use super::kills::{Plan, Scene, Victims, inbox};
use super::link::{GROUP, Link, NatsLink, Place, RabbitLink};
use crate::conformance::postgres::PostgresFixture;

const RELAYS: usize = 4;
const PLAN: Plan = Plan {
    case: "F14",
    relays: (Role::Relay, RELAYS),
    workers: (Role::Worker, 1),
    victims: Victims::Relays,
    kills: 6,
    messages: 1_200,
    accounts: 40,
    order: Order::SingleActive,
};

/// Eight relays, one of them killed every other second, beside one that is left alone.
async fn holds_in_full<L: Link>(fixture: Arc<PostgresFixture>) {
    const MESSAGES: (u32, u32) = (50_000, 200_000);
    let Some(place) = Place::shared::<L>() else { return };
    let mut scene = Scene::open::<L>(&fixture, &place, Plan { accounts: 1_000, ..PLAN }).await;

    scene.fill(MESSAGES.0.into()).await;
    let alone = f64::from(MESSAGES.0) / scene.drain(1, None).await.as_secs_f64();
    scene.fill(MESSAGES.1.into()).await;
    let together = f64::from(MESSAGES.1) / scene.drain(8, Some(Duration::from_secs(2))).await.as_secs_f64();
    scene.add(Role::Worker, 1);
    let findings = scene.judge().await;

    L::clean(&place).await;
    println!("F14 {}: {together:.0} a second under kills, {alone:.0} alone", L::BRAND.name());
    assert!(together >= 0.7 * alone, "{together:.0} a second under kills, {alone:.0} alone");
    findings.assert_clean();
}

async fn holds<L: Link>(fixture: Arc<PostgresFixture>) {
    if is_full() {
        return holds_in_full::<L>(fixture).await;
    }
    let Some(findings) = PLAN.run::<_, L>(&fixture).await else { return };

    findings.assert_clean();
}

#[test]
fn many_relays_keep_the_order_of_keys_to_rabbitmq() {
    on_store::<PostgresFixture, _, _>(holds::<RabbitLink>);
}

#[test]
fn many_relays_keep_the_order_of_keys_to_nats() {
    on_store::<PostgresFixture, _, _>(holds::<NatsLink>);
}

/// Takes rows that nobody has taken, sends them and deletes them.
async fn skip_locked(pool: PgPool, schema: String, publisher: impl Publisher) {
    let take = format!(
        "DELETE FROM {schema}.job WHERE position IN (SELECT position FROM {schema}.job
         ORDER BY position LIMIT 3 FOR UPDATE SKIP LOCKED) RETURNING position, account"
    );
    loop {
        let mut tx = pool.begin().await.unwrap();
        let rows = sqlx::query(AssertSqlSafe(take.as_str())).fetch_all(&mut *tx).await.unwrap();
        if rows.is_empty() {
            return;
        }
        let mut batch: Vec<(i64, Envelope)> = rows
            .iter()
            .map(|row| {
                let (position, account): (i64, String) = (row.get(0), row.get(1));
                let message = Posted::on(&account, position);
                let envelope = Envelope::of(position.to_string(), &message).unwrap();
                (position, Envelope { source: SOURCE.into(), ..envelope })
            })
            .collect();
        batch.sort_by_key(|(position, _)| *position);
        let batch: Vec<Envelope> = batch.into_iter().map(|(_, envelope)| envelope).collect();
        assert!(publisher.publish(&batch).await.iter().all(Result::is_ok));
        tx.commit().await.unwrap();
    }
}

async fn without_a_guard<L: Link>(fixture: &Arc<PostgresFixture>) -> Option<Findings> {
    const ROWS: i64 = 400;
    let (place, schema) = (Place::shared::<L>()?, fixture.schema.clone());
    let fill = format!(
        "CREATE TABLE {schema}.job AS SELECT n::bigint AS position, 'account-' || n % 2 AS account
         FROM generate_series(0, {}) AS n",
        ROWS - 1
    );
    sqlx::raw_sql(AssertSqlSafe(fill)).execute(&fixture.pool).await.unwrap();
    let transport = L::to(&place, Order::SingleActive);
    let feed = transport.subscribe(DESTINATION, GROUP).await.unwrap();
    let mut relays = tokio::task::JoinSet::new();
    for _ in 0..RELAYS {
        // A connection each, as processes have.
        let publisher = L::to(&place, Order::SingleActive);
        relays.spawn(skip_locked(fixture.pool.clone(), schema.clone(), publisher));
    }
    relays.join_all().await;
    let stop = CancellationToken::new();
    let consumer = tokio::spawn(Consumer::new(inbox(fixture), feed).run(stop.clone()));
    let committed: Vec<_> =
        (0..ROWS).map(|n| operation(HANDLER, &Posted::on(&format!("account-{}", n % 2), n))).collect();
    while fixture.effects().await.len() < committed.len() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    consumer.await.unwrap();
    L::clean(&place).await;
    Some(Ledger::check(&committed, &fixture.effects().await))
}

async fn is_found_out<L: Link>(fixture: Arc<PostgresFixture>) {
    let Some(findings) = without_a_guard::<L>(&fixture).await else { return };

    println!("F14 sabotaged: {findings}");
    assert!(findings.lost.is_empty() && !findings.inversions.is_empty(), "{findings}");
}

#[test]
fn sabotaged_relays_that_skip_locked_rows_swap_messages_of_a_key_to_rabbitmq() {
    on_store::<PostgresFixture, _, _>(is_found_out::<RabbitLink>);
}

#[test]
fn sabotaged_relays_that_skip_locked_rows_swap_messages_of_a_key_to_nats() {
    on_store::<PostgresFixture, _, _>(is_found_out::<NatsLink>);
}
