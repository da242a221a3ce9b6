//! What operators see.

use oncebox_core::inspect::{BoxFuture, COUNT_CAP, HandlerStatus, Inspect, SinkStatus, Status};
use oncebox_core::log::ParkedRow;
use oncebox_core::{Result, Timestamp};
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::error::failed;
use super::row::count;
use super::{SqliteStore, relay};

const STATUS: &str = "cannot read the status";
/// Among so many deliveries of each state the oldest is looked for.
const OLDEST_AMONG: i64 = 1000;

impl Inspect for SqliteStore {
    fn status(&self) -> BoxFuture<'_, Result<Status>> {
        Box::pin(status(self))
    }

    fn parked(&self, limit: usize) -> BoxFuture<'_, Result<Vec<ParkedRow>>> {
        Box::pin(parked(self, None, None, limit))
    }

    fn dead<'s>(&'s self, sink: Option<&'s str>, limit: usize) -> BoxFuture<'s, Result<Vec<ParkedRow>>> {
        Box::pin(parked(self, Some("dead"), sink, limit))
    }
}

async fn status(store: &SqliteStore) -> Result<Status> {
    // One read transaction, so that the numbers belong together.
    let mut tx = store.pool().begin().await.map_err(failed(STATUS))?;
    let now = relay::clock(store, &mut tx, None).await?;
    let (logged, scheduled, markers, dead_letters) =
        sqlx::query_as(store.sql(include_str!("sql/status.sql")))
            .bind(COUNT_CAP)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed(STATUS))?;
    let rows = sqlx::query(store.sql(include_str!("sql/status_sinks.sql")))
        .bind(COUNT_CAP)
        .bind(now.micros())
        .fetch_all(&mut *tx)
        .await
        .map_err(failed(STATUS))?;
    let sinks = rows.iter().map(|row| sink_status(row, now)).collect::<sqlx::Result<_>>();
    let sinks = sinks.map_err(failed(STATUS))?;
    let handlers = handlers(store, &mut tx, now).await?;
    Ok(Status { logged, scheduled, sinks, markers, dead_letters, handlers })
}

async fn handlers(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    now: Timestamp,
) -> Result<Vec<HandlerStatus>> {
    // One row per handler and state, those of a handler side by side.
    let rows: Vec<(String, String, String, i64, Option<i64>)> =
        sqlx::query_as(store.sql(include_str!("sql/status_handlers.sql")))
            .bind(COUNT_CAP)
            .bind(OLDEST_AMONG)
            .fetch_all(tx)
            .await
            .map_err(failed(STATUS))?;
    let mut all: Vec<HandlerStatus> = Vec::new();
    for (scope, handler, state, count, oldest) in rows {
        let mut status = match all.pop() {
            Some(status) if status.scope == scope && status.handler == handler => status,
            other => {
                all.extend(other);
                HandlerStatus { scope, handler, ..HandlerStatus::default() }
            }
        };
        match state.as_str() {
            "ready" => status.ready = count,
            "leased" => status.leased = count,
            "behind" => status.behind = count,
            "parked" => status.parked = count,
            _ => status.dead = count,
        }
        let age = oldest.map(|time| now.since(Timestamp::from_micros(time)));
        status.oldest = status.oldest.max(age);
        all.push(status);
    }
    Ok(all)
}

fn sink_status(row: &SqliteRow, now: Timestamp) -> sqlx::Result<SinkStatus> {
    let (above, open): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
    let (oldest_above, oldest_open): (Option<i64>, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
    let oldest = oldest_above.into_iter().chain(oldest_open).min().map(Timestamp::from_micros);
    let moved_at: Option<i64> = row.try_get(10)?;
    Ok(SinkStatus {
        sink: row.try_get(0)?,
        pending: above.saturating_add(open).min(COUNT_CAP),
        oldest: oldest.map(|time| now.since(time)),
        waiting: row.try_get(5)?,
        behind: row.try_get(6)?,
        dead: row.try_get(7)?,
        relays: row.try_get(8)?,
        unowned_shards: row.try_get(9)?,
        moved_at: moved_at.map(Timestamp::from_micros),
        outage: row.try_get(11)?,
    })
}

async fn parked(
    store: &SqliteStore,
    state: Option<&str>,
    sink: Option<&str>,
    limit: usize,
) -> Result<Vec<ParkedRow>> {
    let rows = sqlx::query(store.sql(include_str!("sql/parked.sql")))
        .bind(count(limit))
        .bind(state)
        .bind(sink)
        .fetch_all(store.pool())
        .await
        .map_err(failed("cannot read the parked messages"))?;
    rows.iter()
        .map(parked_row)
        .collect::<sqlx::Result<_>>()
        .map_err(failed("cannot read the parked messages"))
}

fn parked_row(row: &SqliteRow) -> sqlx::Result<ParkedRow> {
    Ok(ParkedRow {
        sink: row.try_get(0)?,
        position: row.try_get(1)?,
        id: String::from_utf8_lossy(row.try_get(2)?).into_owned(),
        kind: String::from_utf8_lossy(row.try_get(3)?).into_owned(),
        state: row.try_get(4)?,
        attempts: row.try_get(5)?,
        reason: row.try_get(6)?,
        since: Timestamp::from_micros(row.try_get(7)?),
    })
}
