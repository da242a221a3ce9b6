//! What operators see.

use oncebox_core::inspect::{BoxFuture, COUNT_CAP, Inspect, SinkStatus, Status};
use oncebox_core::log::ParkedRow;
use oncebox_core::{Result, Timestamp};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::error::failed;
use super::row::count;
use super::{SqliteStore, relay};

const STATUS: &str = "cannot read the status";

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
    Ok(Status { logged, scheduled, sinks: sinks.map_err(failed(STATUS))?, markers, dead_letters })
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
