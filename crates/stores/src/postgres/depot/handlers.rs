//! Which handlers somebody can run, and what waits for want of them.

use std::time::Duration;

use oncebox_core::depot::Number;
use oncebox_core::{Result, Store, Timestamp};

use super::super::error::failed;
use super::super::row::{clock, limit, span};
use super::super::store::PostgresStore;
use super::lane::{self, Lane};

/// How many parked deliveries become ready in one transaction.
const BATCH: usize = 1_000;

const ANNOUNCE_FAILED: &str = "cannot announce handlers";

pub(super) async fn announce(
    store: &PostgresStore,
    scope: &str,
    handlers: &[&str],
    now: Option<Timestamp>,
) -> Result<usize> {
    if handlers.is_empty() {
        return Ok(0);
    }
    sqlx::query(store.sql(include_str!("../sql/announce.sql")))
        .bind(scope)
        .bind(handlers)
        .bind(clock(now))
        .execute(store.pool())
        .await
        .map_err(failed(ANNOUNCE_FAILED))?;
    let mut total = 0;
    loop {
        let parked: Vec<Number> = sqlx::query_scalar(store.sql(include_str!("../sql/parked_of.sql")))
            .bind(scope)
            .bind(handlers)
            .bind(limit(BATCH))
            .fetch_all(store.pool())
            .await
            .map_err(failed(ANNOUNCE_FAILED))?;
        if parked.is_empty() {
            return Ok(total);
        }
        let mut tx = store.begin().await?;
        lane::lock_of(store, &mut tx, &parked).await?;
        total += lane::place(store, &mut tx, (&parked, None), now).await?;
        store.commit(tx).await?;
        if parked.len() < BATCH {
            return Ok(total);
        }
    }
}

pub(super) async fn park_orphans(
    store: &PostgresStore,
    after: Duration,
    rows: usize,
    now: Option<Timestamp>,
) -> Result<usize> {
    let parked: Vec<Parked> = sqlx::query_as(store.sql(include_str!("../sql/park_orphans.sql")))
        .bind(span(after))
        .bind(limit(rows))
        .bind(clock(now))
        .fetch_all(store.pool())
        .await
        .map_err(failed("cannot park deliveries that nobody can run"))?;
    let lanes: Vec<Lane<'_>> = parked.iter().filter_map(lane_of).collect();
    if !lanes.is_empty() {
        // A transaction of its own: a lane is locked before its rows.
        let mut tx = store.begin().await?;
        lane::lock(store, &mut tx, &lanes).await?;
        lane::free(store, &mut tx, &lanes, now).await?;
        store.commit(tx).await?;
    }
    Ok(parked.len())
}

/// Scope, handler, tenant and lane.
type Parked = (String, String, String, Option<String>);

fn lane_of((scope, handler, tenant, lane): &Parked) -> Option<Lane<'_>> {
    Some(Lane { scope, handler, tenant, lane: lane.as_deref()? })
}
