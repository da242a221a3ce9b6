//! What operators see. Every count stops at a cap, so looking stays cheap.

use oncebox_core::inspect::{BoxFuture, COUNT_CAP, HandlerStatus, Inspect, SinkStatus, Status};
use oncebox_core::log::ParkedRow;
use oncebox_core::{Result, Timestamp};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::error::failed;
use super::row::{Time, limit};
use super::store::PostgresStore;

const STATUS_FAILED: &str = "cannot read the status";
const PARKED_FAILED: &str = "cannot read parked messages";

impl Inspect for PostgresStore {
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

async fn status(store: &PostgresStore) -> Result<Status> {
    let (logged, scheduled, markers, dead_letters): (i64, i64, i64, i64) =
        sqlx::query_as(store.sql(include_str!("sql/status_totals.sql")))
            .bind(COUNT_CAP)
            .fetch_one(store.pool())
            .await
            .map_err(failed(STATUS_FAILED))?;
    let sinks = sqlx::query(store.sql(include_str!("sql/status_sinks.sql")))
        .bind(COUNT_CAP)
        .fetch_all(store.pool())
        .await
        .map_err(failed(STATUS_FAILED))?;
    let sinks = sinks.iter().map(sink).collect::<Result<_, _>>().map_err(failed(STATUS_FAILED))?;
    Ok(Status { logged, scheduled, sinks, markers, dead_letters, handlers: handlers(store).await? })
}

async fn handlers(store: &PostgresStore) -> Result<Vec<HandlerStatus>> {
    let rows = sqlx::query(store.sql(include_str!("sql/status_handlers.sql")))
        .bind(COUNT_CAP)
        .fetch_all(store.pool())
        .await
        .map_err(failed(STATUS_FAILED))?;
    rows.iter().map(handler).collect::<Result<_, _>>().map_err(failed(STATUS_FAILED))
}

fn handler(columns: &PgRow) -> Result<HandlerStatus, sqlx::Error> {
    let now: Timestamp = columns.try_get::<Time, _>(8)?.0;
    Ok(HandlerStatus {
        scope: columns.try_get(0)?,
        handler: columns.try_get(1)?,
        ready: columns.try_get(2)?,
        leased: columns.try_get(3)?,
        behind: columns.try_get(4)?,
        parked: columns.try_get(5)?,
        dead: columns.try_get(6)?,
        oldest: columns.try_get::<Option<Time>, _>(7)?.map(|oldest| now.since(oldest.0)),
    })
}

fn sink(columns: &PgRow) -> Result<SinkStatus, sqlx::Error> {
    let now: Timestamp = columns.try_get::<Time, _>(3)?.0;
    Ok(SinkStatus {
        sink: columns.try_get(0)?,
        pending: columns.try_get(1)?,
        oldest: columns.try_get::<Option<Time>, _>(2)?.map(|oldest| now.since(oldest.0)),
        waiting: columns.try_get(4)?,
        behind: columns.try_get(5)?,
        dead: columns.try_get(6)?,
        relays: columns.try_get(7)?,
        unowned_shards: columns.try_get(8)?,
        moved_at: columns.try_get::<Option<Time>, _>(9)?.map(|moved| moved.0),
        outage: columns.try_get(10)?,
    })
}

async fn parked(
    store: &PostgresStore,
    state: Option<&str>,
    sink: Option<&str>,
    rows: usize,
) -> Result<Vec<ParkedRow>> {
    let rows = sqlx::query(store.sql(include_str!("sql/parked.sql")))
        .bind(limit(rows))
        .bind(state)
        .bind(sink)
        .fetch_all(store.pool())
        .await
        .map_err(failed(PARKED_FAILED))?;
    rows.iter().map(parked_row).collect::<Result<_, _>>().map_err(failed(PARKED_FAILED))
}

fn parked_row(columns: &PgRow) -> Result<ParkedRow, sqlx::Error> {
    Ok(ParkedRow {
        sink: columns.try_get(0)?,
        position: columns.try_get(1)?,
        id: columns.try_get(2)?,
        kind: columns.try_get(3)?,
        state: columns.try_get(4)?,
        attempts: columns.try_get::<i32, _>(5)?.unsigned_abs(),
        reason: columns.try_get(6)?,
        since: columns.try_get::<Time, _>(7)?.0,
    })
}
