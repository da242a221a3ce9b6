//! Lanes: deliveries that go one after the other.
//!
//! One of a lane is ready or leased, the others are behind it. Under the write
//! lock nobody can join or leave a lane while its next one is chosen.

use oncebox_core::depot::Number;
use oncebox_core::{Result, Timestamp};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row as _};

use super::super::SqliteStore;
use super::super::error::failed;

/// The lane of a delivery that has just left it, if it had one.
#[derive(Debug)]
pub(in super::super) struct Left {
    scope: String,
    handler: String,
    tenant: String,
    pub(in super::super) lane: Option<String>,
}

impl FromRow<'_, SqliteRow> for Left {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self {
            scope: row.try_get(0)?,
            handler: row.try_get(1)?,
            tenant: row.try_get(2)?,
            lane: row.try_get(3)?,
        })
    }
}

/// Lets the next of a lane run.
pub(in super::super) async fn free(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    left: &Left,
    now: Timestamp,
) -> Result<()> {
    let Some(lane) = &left.lane else { return Ok(()) };
    sqlx::query(store.sql(include_str!("../sql/lane_free.sql")))
        .bind(left.scope.as_str())
        .bind(left.handler.as_str())
        .bind(left.tenant.as_str())
        .bind(lane.as_str())
        .bind(now.micros())
        .execute(tx)
        .await
        .map_err(failed("cannot free a lane"))?;
    Ok(())
}

/// Makes a delivery ready, or puts it behind those that are in its way if it
/// stood where `place` stands.
pub(in super::super) async fn place(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    (number, place): (Number, Number),
    now: Timestamp,
) -> Result<()> {
    sqlx::query(store.sql(include_str!("../sql/lane_place.sql")))
        .bind(number)
        .bind(now.micros())
        .bind(place)
        .execute(tx)
        .await
        .map_err(failed("cannot place a delivery in its lane"))?;
    Ok(())
}
