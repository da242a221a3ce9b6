//! The same work by hand, on the same tables with the same indexes: what a
//! careful engineer writes who knows that there is one handler, one service
//! and no trouble.
//!
//! What it leaves out: the digest of the body and whether another body came
//! under the same id; the age gate and the look at old markers; most of the
//! message's attributes; waits that are bounded by lock timeouts; heartbeats,
//! suspects and leases that ran out; timeouts and panics of the handler;
//! retries; and a way to learn what became of a COMMIT whose answer was lost.

use std::time::Instant;

use oncebox_core::{Envelope, Message as _};
use oncebox_flow::WorkOptions;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection, Row as _};

use super::durable::Phases;
use crate::lab::postgres::PostgresLab;
use crate::lab::{HANDLER, Lab as _};
use crate::order::{Order, deliveries};

/// Messages of one INSERT: as many as the inbox stores at once.
const DEPOSIT: usize = 1_000;
/// Deliveries that a loop leases at once: more makes it slower.
const LEASED: i64 = 32;
const DIGEST: [u8; 32] = [0; 32];

/// Stores messages and runs them in as many loops as a worker has seats.
pub(super) async fn loops(lab: &PostgresLab, messages: u64, options: &WorkOptions) -> Phases {
    let before = lab.effects().await;
    let prepared = deliveries(messages);
    let started = Instant::now();
    let mut connection = lab.pool().acquire().await.expect("a connection");
    for batch in prepared.chunks(DEPOSIT) {
        deposit(&mut connection, batch).await;
    }
    drop(connection);
    let deposit = started.elapsed();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..options.concurrency {
        tasks.spawn(work(lab.clone()));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("a loop ends well");
    }
    let phases = Phases { messages, deposit, work: started.elapsed() - deposit };
    assert_eq!(lab.effects().await - before, messages, "every message has its effect");
    phases
}

/// Messages and their deliveries, in one statement.
async fn deposit(connection: &mut PgConnection, batch: &[Envelope]) {
    let ids: Vec<&str> = batch.iter().map(|envelope| envelope.id.as_str()).collect();
    let payloads: Vec<&[u8]> = batch.iter().map(|envelope| envelope.payload.as_slice()).collect();
    let stored = sqlx::query(
        "WITH stored AS (
            INSERT INTO oncebox.message
                (scope, channel, tenant, source, id, type, digest, received_at, attributes, payload)
            SELECT '', 'bench', '', 'bench', m.id, $3, $4, clock_timestamp(), '{}', m.payload
            FROM unnest($1::text[], $2::bytea[]) AS m (id, payload)
            ON CONFLICT DO NOTHING
            RETURNING number, source, id, digest)
         INSERT INTO oncebox.delivery
            (message, scope, handler, tenant, key_source, key_id, digest, state, due_at)
         SELECT number, '', $5, '', source, id, digest, 'ready', clock_timestamp() FROM stored",
    )
    .bind(ids)
    .bind(payloads)
    .bind(Order::NAME)
    .bind(DIGEST.as_slice())
    .bind(HANDLER)
    .execute(connection)
    .await
    .expect("a deposit");
    assert_eq!(stored.rows_affected(), batch.len() as u64, "all of them are new");
}

/// Leases and runs until nothing is left, on a connection of its own.
async fn work(lab: PostgresLab) {
    let mut connection = lab.pool().acquire().await.expect("a connection");
    loop {
        let leased = lease(&mut connection).await;
        if leased.is_empty() {
            return;
        }
        for (place, row) in leased.iter().enumerate() {
            handle(&lab, &mut connection, row, leased.get(place + 1)).await;
        }
    }
}

async fn lease(connection: &mut PgConnection) -> Vec<PgRow> {
    sqlx::query(
        "WITH due AS MATERIALIZED (
            SELECT number FROM oncebox.delivery
            WHERE scope = '' AND handler = $1 AND state = 'ready' AND due_at <= statement_timestamp()
                AND lease_until IS NULL
            ORDER BY due_at, number LIMIT $2
            FOR UPDATE SKIP LOCKED),
         leased AS (
            UPDATE oncebox.delivery
            SET holder = 'hand', fence = fence + 1,
                started = number = (SELECT min(number) FROM due),
                attempts = attempts + (number = (SELECT min(number) FROM due))::integer,
                lease_until = clock_timestamp() + interval '1 minute'
            WHERE number = ANY (ARRAY(SELECT number FROM due))
            RETURNING number, fence, message)
         SELECT l.number, l.fence, m.source, m.id, m.payload
         FROM leased AS l JOIN oncebox.message AS m ON m.number = l.message
         ORDER BY l.number",
    )
    .bind(HANDLER)
    .bind(LEASED)
    .fetch_all(connection)
    .await
    .expect("a lease")
}

/// BEGIN, effect, done with its marker and the next one's attempt counted, COMMIT.
async fn handle(lab: &PostgresLab, connection: &mut PgConnection, row: &PgRow, next: Option<&PgRow>) {
    let order = Order::decode(row.get_unchecked(4)).expect("an order");
    let mut tx = connection.begin().await.expect("a transaction");
    lab.record(&mut tx, order).await;
    let done = sqlx::query(
        "WITH mine AS (
            DELETE FROM oncebox.delivery
            WHERE number = $1 AND fence = $2 AND lease_until IS NOT NULL
            RETURNING *),
         kept AS (
            INSERT INTO oncebox.finished (number, message, scope, handler, tenant, key_source, key_id, digest,
                fence, attempts, generation, history, ended_at)
            SELECT number, message, scope, handler, tenant, key_source, key_id, digest, fence, attempts,
                generation, history, clock_timestamp()
            FROM mine),
         next AS (
            UPDATE oncebox.delivery SET started = true, attempts = attempts + 1
            WHERE number = $7 AND fence = $8 AND lease_until IS NOT NULL)
         INSERT INTO oncebox.marker (tenant, handler, source, id, digest, processed_at)
         SELECT '', $3, $4, $5, $6, clock_timestamp() FROM mine
         ON CONFLICT DO NOTHING",
    )
    .bind(row.get_unchecked::<i64, _>(0))
    .bind(row.get_unchecked::<i64, _>(1))
    .bind(HANDLER)
    .bind(row.get_unchecked::<&str, _>(2))
    .bind(row.get_unchecked::<&str, _>(3))
    .bind(DIGEST.as_slice())
    .bind(next.map(|next| next.get_unchecked::<i64, _>(0)))
    .bind(next.map(|next| next.get_unchecked::<i64, _>(1)))
    .execute(&mut *tx)
    .await
    .expect("an end");
    assert_eq!(done.rows_affected(), 1, "the lease is still its own");
    tx.commit().await.expect("a commit");
}
