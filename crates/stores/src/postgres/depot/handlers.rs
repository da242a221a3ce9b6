//! Which handlers somebody can run, and what waits for want of them.

use std::time::Duration;

use oncebox_core::depot::Number;
use oncebox_core::{Result, Store, Timestamp};

use super::super::error::failed;
use super::super::row::{clock, limit, span};
use super::super::store::PostgresStore;
use super::lane;

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
    let done = sqlx::query(store.sql(include_str!("../sql/park_orphans.sql")))
        .bind(span(after))
        .bind(limit(rows))
        .bind(clock(now))
        .execute(store.pool())
        .await
        .map_err(failed("cannot park deliveries that nobody can run"))?;
    Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
}
