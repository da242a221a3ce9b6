//! Lanes: deliveries of one (scope, handler, tenant, lane) go one after the
//! other.
//!
//! Who adds to a lane and who ends one of it may not see each other, so both
//! hold the lane's lock until their transaction ends: else one would wait
//! behind another that is over. Everything else about a lane needs no lock.

use oncebox_core::depot::Number;
use oncebox_core::{Result, Timestamp};
use sqlx::PgConnection;
use sqlx::query::Query;

use super::super::error::failed;
use super::super::row::clock;
use super::super::store::PostgresStore;

const LOCK_FAILED: &str = "cannot lock a lane";

/// A lane's name in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Lane<'a> {
    pub(in super::super) scope: &'a str,
    pub(in super::super) handler: &'a str,
    pub(in super::super) tenant: &'a str,
    pub(in super::super) lane: &'a str,
}

/// Waits for others that add to these lanes or end one of them.
pub(in super::super) async fn lock(
    store: &PostgresStore,
    tx: &mut PgConnection,
    lanes: &[Lane<'_>],
) -> Result<()> {
    if lanes.is_empty() {
        return Ok(());
    }
    let query = bound(sqlx::query(store.sql(include_str!("../sql/lane_lock.sql"))), lanes);
    query.execute(tx).await.map_err(failed(LOCK_FAILED))?;
    Ok(())
}

/// The same for the lanes of these deliveries, if they have any.
pub(in super::super) async fn lock_of(
    store: &PostgresStore,
    tx: &mut PgConnection,
    numbers: &[Number],
) -> Result<()> {
    let query = sqlx::query(store.sql(include_str!("../sql/lane_lock_of.sql"))).bind(numbers);
    query.execute(tx).await.map_err(failed(LOCK_FAILED))?;
    Ok(())
}

/// Lets the first of each lane run if it waits for nobody. The lanes are locked.
pub(in super::super) async fn free(
    store: &PostgresStore,
    tx: &mut PgConnection,
    lanes: &[Lane<'_>],
    now: Option<Timestamp>,
) -> Result<()> {
    if lanes.is_empty() {
        return Ok(());
    }
    let query = bound(sqlx::query(store.sql(include_str!("../sql/lane_free.sql"))), lanes);
    query.bind(clock(now)).execute(tx).await.map_err(failed("cannot free a lane"))?;
    Ok(())
}

/// Lets parked deliveries run, or wait behind others of their lanes, which are
/// locked. One that is new may stand in for an older one.
pub(in super::super) async fn place(
    store: &PostgresStore,
    tx: &mut PgConnection,
    (numbers, stands_for): (&[Number], Option<Number>),
    now: Option<Timestamp>,
) -> Result<usize> {
    let placed = sqlx::query(store.sql(include_str!("../sql/lane_place.sql")))
        .bind(numbers)
        .bind(clock(now))
        .bind(stands_for)
        .execute(tx)
        .await
        .map_err(failed("cannot place a delivery in its lane"))?;
    Ok(usize::try_from(placed.rows_affected()).unwrap_or(usize::MAX))
}

type PgQuery<'q> = Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

fn bound<'q>(query: PgQuery<'q>, lanes: &[Lane<'q>]) -> PgQuery<'q> {
    fn each<'q>(lanes: &[Lane<'q>], column: impl Fn(&Lane<'q>) -> &'q str) -> Vec<&'q str> {
        lanes.iter().map(column).collect()
    }
    query
        .bind(each(lanes, |lane| lane.scope))
        .bind(each(lanes, |lane| lane.handler))
        .bind(each(lanes, |lane| lane.tenant))
        .bind(each(lanes, |lane| lane.lane))
}
