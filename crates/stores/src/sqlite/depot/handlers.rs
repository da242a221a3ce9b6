//! Which handlers somebody can run, and what waits for want of them.

use std::time::Duration;

use oncebox_core::timestamp::micros;
use oncebox_core::{Result, Store, Timestamp};
use serde_json::json;

use super::super::error::failed;
use super::super::row::count;
use super::super::{SqliteStore, relay};
use super::lane::{self, Left};

const ANNOUNCE: &str = "cannot announce handlers";
const PARK: &str = "cannot park deliveries that nobody can run";
/// An announcement that is repeated sooner than this is not written.
const ANNOUNCED: Duration = Duration::from_secs(10);
/// How many parked deliveries become ready in one transaction.
const BATCH: usize = 1_000;

pub(super) async fn announce(
    store: &SqliteStore,
    scope: &str,
    handlers: &[&str],
    now: Option<Timestamp>,
) -> Result<usize> {
    let handlers = json!(handlers).to_string();
    let mut total = 0;
    // Asked without the write lock: most announcements are repeated too soon.
    while has_news(store, (scope, &handlers), now).await? {
        total += write(store, (scope, &handlers), now).await?;
    }
    Ok(total)
}

/// Whether an announcement is due, or something is parked.
async fn has_news(
    store: &SqliteStore,
    (scope, handlers): (&str, &str),
    now: Option<Timestamp>,
) -> Result<bool> {
    sqlx::query_scalar(store.sql(include_str!("../sql/announce_due.sql")))
        .bind(scope)
        .bind(handlers)
        .bind(now.map(Timestamp::micros))
        .bind(micros(ANNOUNCED))
        .fetch_one(store.pool())
        .await
        .map_err(failed(ANNOUNCE))
}

/// Announces the handlers and unparks a batch of their deliveries; tells how many those were.
async fn write(
    store: &SqliteStore,
    (scope, handlers): (&str, &str),
    now: Option<Timestamp>,
) -> Result<usize> {
    let mut tx = store.begin().await?;
    let now = relay::clock(store, &mut tx, now).await?;
    sqlx::query(store.sql(include_str!("../sql/announce.sql")))
        .bind(scope)
        .bind(handlers)
        .bind(now.micros())
        .bind(micros(ANNOUNCED))
        .execute(&mut *tx)
        .await
        .map_err(failed(ANNOUNCE))?;
    let done = sqlx::query(store.sql(include_str!("../sql/unpark.sql")))
        .bind(scope)
        .bind(handlers)
        .bind(now.micros())
        .bind(count(BATCH))
        .execute(&mut *tx)
        .await
        .map_err(failed(ANNOUNCE))?;
    store.commit(tx).await?;
    Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
}

pub(super) async fn park_orphans(
    store: &SqliteStore,
    after: Duration,
    limit: usize,
    now: Option<Timestamp>,
) -> Result<usize> {
    let unknown: Vec<(String, String)> = sqlx::query_as(store.sql(include_str!("../sql/park_handlers.sql")))
        .bind(now.map(Timestamp::micros))
        .bind(micros(after))
        .fetch_all(store.pool())
        .await
        .map_err(failed(PARK))?;
    let mut parked = 0;
    for (scope, handler) in unknown {
        if parked == limit {
            break;
        }
        let mut tx = store.begin().await?;
        let now = relay::clock(store, &mut tx, now).await?;
        let lefts: Vec<Left> = sqlx::query_as(store.sql(include_str!("../sql/park_orphans.sql")))
            .bind(scope)
            .bind(handler)
            .bind(now.micros())
            .bind(micros(after))
            .bind(count(limit - parked))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed(PARK))?;
        for left in &lefts {
            lane::free(store, &mut tx, left, now).await?;
        }
        store.commit(tx).await?;
        parked += lefts.len();
    }
    Ok(parked)
}
