//! Leases: who may work on a delivery, and from when on its attempt counts.

use std::collections::BTreeMap;

use oncebox_core::cloudevents;
use oncebox_core::depot::{Fate, TakeRequest, Taken, Ticket, Want};
use oncebox_core::handler::MessageKey;
use oncebox_core::{Digest, Error, Result, Store, Timestamp};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::super::error::failed;
use super::super::row::{Time, clock, limit, span};
use super::super::store::PostgresStore;
use super::{columns, finish, good};

const TAKE_FAILED: &str = "cannot take deliveries";

/// The code of a stored message that cannot be read.
const CORRUPT: &str = "corrupt";

pub(super) async fn take(
    store: &PostgresStore,
    request: &TakeRequest<'_>,
    now: Option<Timestamp>,
) -> Result<Vec<Taken>> {
    // A handler named twice would be handed the same row twice.
    let wants: BTreeMap<&str, i64> =
        request.wants.iter().map(|want| (want.handler, limit(want.limit.min(request.limit)))).collect();
    let (handlers, limits): (Vec<&str>, Vec<i64>) = wants.into_iter().unzip();
    let text = match request.suspects {
        false => include_str!("../sql/take.sql"),
        true => include_str!("../sql/take_suspects.sql"),
    };
    let rows = sqlx::query(store.sql(text))
        .bind(request.scope)
        .bind(request.holder)
        .bind(handlers)
        .bind(limits)
        .bind(limit(request.limit))
        .bind(limit(request.seats))
        .bind(span(request.lease))
        .bind(clock(now))
        .fetch_all(store.pool())
        .await
        .map_err(failed(TAKE_FAILED))?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        match taken(row).map_err(failed(TAKE_FAILED))? {
            Ok(taken) => all.push(taken),
            // If that fails, it is taken again when its lease has run out; the others are ours.
            Err((ticket, error)) => drop(bury(store, ticket, &error, now).await),
        }
    }
    Ok(all)
}

/// A delivery, or why its message cannot be read.
fn taken(columns: &PgRow) -> Result<Result<Taken, (Ticket, Error)>, sqlx::Error> {
    let count = |index| columns.try_get::<i32, _>(index).map(i32::unsigned_abs);
    let ticket = Ticket { number: columns.try_get(0)?, fence: columns.try_get(1)? };
    let payload: Vec<u8> = columns.try_get(13)?;
    let digest = Digest::of(&payload);
    let envelope = match cloudevents::from_attributes(columns.try_get(12)?, payload) {
        Ok(envelope) => envelope,
        Err(error) => return Ok(Err((ticket, error))),
    };
    Ok(Ok(Taken {
        ticket,
        handler: columns.try_get(2)?,
        channel: columns.try_get(3)?,
        key: MessageKey { source: columns.try_get(4)?, id: columns.try_get(5)? },
        digest,
        lane: columns.try_get(6)?,
        attempt: count(7)?,
        deaths: count(8)?,
        generation: count(9)?,
        started: columns.try_get(10)?,
        received_at: columns.try_get::<Time, _>(11)?.0,
        envelope,
    }))
}

/// Only a person can have made a stored message unreadable, and only a person
/// can help; meanwhile it must not keep the others from being taken.
async fn bury(store: &PostgresStore, ticket: Ticket, error: &Error, now: Option<Timestamp>) -> Result<()> {
    let reason = error.chain();
    let fate = Fate::Dead { spent: false, code: CORRUPT, reason: &reason, frees_lane: false };
    finish::conclude(store, ticket, &fate, None, now).await
}

pub(super) async fn has_suspects(
    store: &PostgresStore,
    scope: &str,
    wants: &[Want<'_>],
    now: Option<Timestamp>,
) -> Result<bool> {
    let handlers: Vec<&str> = wants.iter().map(|want| want.handler).collect();
    sqlx::query_scalar(store.sql(include_str!("../sql/has_suspects.sql")))
        .bind(scope)
        .bind(handlers)
        .bind(clock(now))
        .fetch_one(store.pool())
        .await
        .map_err(failed("cannot look for suspects"))
}

pub(super) async fn start(store: &PostgresStore, tickets: &[Ticket]) -> Result<Vec<bool>> {
    if tickets.is_empty() {
        return Ok(Vec::new());
    }
    let (numbers, fences) = columns(tickets);
    // In a transaction because only there a wait for a lock is bounded.
    let mut tx = store.begin().await?;
    let found = sqlx::query_as(store.sql(include_str!("../sql/start.sql")))
        .bind(numbers)
        .bind(fences)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed("cannot count attempts"))?;
    store.commit(tx).await?;
    Ok(good(tickets, found))
}

pub(super) async fn give_back(
    store: &PostgresStore,
    tickets: &[Ticket],
    now: Option<Timestamp>,
) -> Result<()> {
    if tickets.is_empty() {
        return Ok(());
    }
    let (numbers, fences) = columns(tickets);
    let mut tx = store.begin().await?;
    sqlx::query(store.sql(include_str!("../sql/give_back.sql")))
        .bind(numbers)
        .bind(fences)
        .bind(clock(now))
        .execute(&mut *tx)
        .await
        .map_err(failed("cannot give deliveries back"))?;
    store.commit(tx).await
}
