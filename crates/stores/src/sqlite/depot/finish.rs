//! What becomes of a delivery that somebody holds.

use oncebox_core::depot::{Fate, Finish, HISTORY, Savepoint, Standing, Ticket, reason_text};
use oncebox_core::store::{Mark, Marked};
use oncebox_core::{Error, Result, Store, Timestamp};
use sqlx::sqlite::SqliteConnection;

use super::super::error::failed;
use super::super::row::count;
use super::super::{SqliteStore, relay};
use super::lane::{self, Left};
use super::{fenced, held, take};

const FINISH: &str = "cannot finish a delivery";
const CONCLUDE: &str = "cannot write what becomes of a delivery";

pub(super) async fn finish(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    finish: &Finish<'_>,
    now: Option<Timestamp>,
) -> Result<Marked> {
    let now = relay::clock(store, tx, now).await?;
    let left = end(store, tx, finish.ticket, now).await?;
    if let Some(mark) = &finish.mark {
        let marked = mark_done(store, tx, (mark, finish.result), now).await?;
        if marked != Marked::First {
            return Ok(marked);
        }
    }
    if finish.frees_lane {
        lane::free(store, tx, &left, now).await?;
    }
    if let Some(next) = finish.next {
        take::start_on(store, tx, &[next]).await?;
    }
    Ok(Marked::First)
}

async fn end(store: &SqliteStore, tx: &mut SqliteConnection, ticket: Ticket, now: Timestamp) -> Result<Left> {
    sqlx::query_as(store.sql(include_str!("../sql/finish.sql")))
        .bind(ticket.number)
        .bind(ticket.fence)
        .bind(now.micros())
        .fetch_optional(tx)
        .await
        .map_err(failed(FINISH))?
        .ok_or_else(|| fenced(ticket))
}

/// The age of the message was looked at when it was accepted.
async fn mark_done(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    (mark, result): (&Mark<'_>, Option<&[u8]>),
    now: Timestamp,
) -> Result<Marked> {
    let done = sqlx::query(store.sql(include_str!("../sql/finish_mark.sql")))
        .bind(mark.tenant)
        .bind(mark.handler)
        .bind(mark.key.source.as_str())
        .bind(mark.key.id.as_str())
        .bind(mark.digest.as_bytes().as_slice())
        .bind(now.micros())
        .bind(result)
        .execute(&mut *tx)
        .await
        .map_err(failed(FINISH))?;
    if done.rows_affected() > 0 {
        return Ok(Marked::First);
    }
    let (digest, result): (Vec<u8>, Option<Vec<u8>>) =
        sqlx::query_as(store.sql(include_str!("../sql/mark_find.sql")))
            .bind(mark.tenant)
            .bind(mark.handler)
            .bind(mark.key.source.as_str())
            .bind(mark.key.id.as_str())
            .fetch_one(tx)
            .await
            .map_err(failed(FINISH))?;
    let is_same = digest == mark.digest.as_bytes();
    Ok(if is_same { Marked::Duplicate { result } } else { Marked::Conflict })
}

pub(super) async fn savepoint(tx: &mut SqliteConnection, step: Savepoint) -> Result<()> {
    let text = match step {
        Savepoint::Set => "SAVEPOINT oncebox_delivery",
        Savepoint::Next => "RELEASE oncebox_delivery; SAVEPOINT oncebox_delivery",
        // The place itself stays.
        Savepoint::Undo => "ROLLBACK TO oncebox_delivery",
    };
    sqlx::raw_sql(text).execute(tx).await.map_err(failed("cannot move a savepoint"))?;
    Ok(())
}

pub(super) async fn conclude(
    store: &SqliteStore,
    ticket: Ticket,
    fate: &Fate<'_>,
    next: Option<Ticket>,
    now: Option<Timestamp>,
) -> Result<()> {
    let mut tx = store.begin().await?;
    let now = relay::clock(store, &mut tx, now).await?;
    match fate {
        Fate::Retry { after, spent: false, .. } => {
            put_off(store, &mut tx, ticket, now.plus(*after)).await?;
        }
        Fate::Retry { after, spent: true, code, reason } => {
            let failure = Failure { ticket, code, reason, now };
            retry(store, &mut tx, &failure, now.plus(*after)).await?;
        }
        Fate::Dead { spent, code, reason, frees_lane } => {
            let failure = Failure { ticket, code, reason, now };
            die(store, &mut tx, &failure, (*spent, *frees_lane)).await?;
        }
        Fate::Duplicate => {
            let left = end(store, &mut tx, ticket, now).await?;
            lane::free(store, &mut tx, &left, now).await?;
        }
    }
    if let Some(next) = next {
        take::start_on(store, &mut tx, &[next]).await?;
    }
    store.commit(tx).await
}

/// A failed attempt, to be remembered.
struct Failure<'a> {
    ticket: Ticket,
    code: &'a str,
    reason: &'a str,
    now: Timestamp,
}

async fn put_off(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    ticket: Ticket,
    due_at: Timestamp,
) -> Result<()> {
    let done = sqlx::query(store.sql(include_str!("../sql/conclude_retry.sql")))
        .bind(ticket.number)
        .bind(ticket.fence)
        .bind(due_at.micros())
        .execute(tx)
        .await
        .map_err(failed(CONCLUDE))?;
    held(ticket, &done)
}

async fn retry(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    failure: &Failure<'_>,
    due_at: Timestamp,
) -> Result<()> {
    let done = sqlx::query(store.sql(include_str!("../sql/conclude_spent.sql")))
        .bind(failure.ticket.number)
        .bind(failure.ticket.fence)
        .bind(due_at.micros())
        .bind(failure.now.micros())
        .bind(failure.code)
        .bind(reason_text(failure.reason))
        .bind(count(HISTORY))
        .execute(tx)
        .await
        .map_err(failed(CONCLUDE))?;
    held(failure.ticket, &done)
}

async fn die(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    failure: &Failure<'_>,
    (spent, frees_lane): (bool, bool),
) -> Result<()> {
    let left: Option<Left> = sqlx::query_as(store.sql(include_str!("../sql/delivery_lane.sql")))
        .bind(failure.ticket.number)
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed(CONCLUDE))?;
    let done = sqlx::query(store.sql(include_str!("../sql/conclude_dead.sql")))
        .bind(failure.ticket.number)
        .bind(failure.ticket.fence)
        .bind(failure.now.micros())
        .bind(failure.code)
        .bind(reason_text(failure.reason))
        .bind(count(HISTORY))
        .bind(spent)
        .bind(frees_lane)
        .execute(&mut *tx)
        .await
        .map_err(failed(CONCLUDE))?;
    held(failure.ticket, &done)?;
    // It may keep its lane, but only those after it.
    match left {
        Some(left) => lane::free(store, tx, &left, failure.now).await,
        None => Ok(()),
    }
}

/// Only a person can have made a stored message unreadable, and only a person
/// can help; meanwhile it must not keep the others from being taken.
pub(super) async fn bury(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    (ticket, code): (Ticket, &str),
    error: &Error,
    now: Timestamp,
) -> Result<()> {
    let failure = Failure { ticket, code, reason: &error.chain(), now };
    die(store, tx, &failure, (false, false)).await
}

pub(super) async fn standing(store: &SqliteStore, ticket: Ticket) -> Result<Standing> {
    // With the write lock in hand nobody else is about to decide anything.
    let mut tx = store.begin().await?;
    let state: Option<String> = sqlx::query_scalar(store.sql(include_str!("../sql/standing.sql")))
        .bind(ticket.number)
        .bind(ticket.fence)
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed("cannot look a delivery up"))?;
    store.rollback(tx).await?;
    Ok(match state.as_deref() {
        Some("done") => Standing::Done,
        Some("leased") => Standing::Held,
        _ => Standing::Lost,
    })
}
