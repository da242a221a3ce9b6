//! What relays do with the outbox: claim shards, read, settle, park.
//!
//! From: `Mailbox` in [`mailbox`](super::mailbox). To: the statements in
//! `sql/`, and [`holes`](super::holes) for positions that cannot be seen yet.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use futures_util::TryStreamExt;
use oncebox_core::log::{
    ClaimRequest, Cursor, DueRow, LaneKey, MAX_BLOCKED, MAX_HOLES, Park, Parking, Position, Row, SHARDS,
    Settlement, Shard, Span, Window, fair_share,
};
use oncebox_core::{Error, Kind, Result, Store, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};

use super::error::failed;
use super::holes::{Holes, Writers, gaps, merged};
use super::row::{self, AFTER_ENVELOPE, clock, count, limit, span, storable};
use super::store::PostgresStore;

/// The most positions of other shards looked at in one read.
const FOREIGN_LIMIT: usize = 100_000;
/// The most rows that follow one due head at a time.
const RUN_LIMIT: usize = 100;
/// One more than a relay lists, so that it can tell.
const BLOCKED_LIMIT: usize = MAX_BLOCKED + 1;

/// Statements that read the log are planned each time. A plan that is kept may
/// have been made while the log was empty, and then reads all of it from its
/// beginning until the server next analyses the table.
const PLAN_IS_KEPT: bool = false;

const CLAIM_FAILED: &str = "cannot claim shards";
const READ_FAILED: &str = "cannot read the outbox log";
const SETTLE_FAILED: &str = "cannot settle";

pub(super) async fn claim(
    store: &PostgresStore,
    request: &ClaimRequest,
    now: Option<Timestamp>,
) -> Result<Vec<Cursor>> {
    let (now, lease) = (clock(now), span(request.lease));
    let mut tx = store.begin().await?;
    let of_holder =
        |text: &'static str| sqlx::query(store.sql(text)).bind(&request.sink).bind(&request.holder);

    let announce = of_holder(include_str!("sql/claim_announce.sql")).bind(lease).bind(now);
    let announce = announce.bind(request.outage_text());
    announce.execute(&mut *tx).await.map_err(failed(CLAIM_FAILED))?;
    let create = sqlx::query(store.sql(include_str!("sql/claim_create.sql")));
    let create = create.bind(&request.sink).bind(i32::from(SHARDS));
    create.execute(&mut *tx).await.map_err(failed(CLAIM_FAILED))?;
    let renew = of_holder(include_str!("sql/claim_renew.sql")).bind(lease).bind(now);
    let mine = renew.execute(&mut *tx).await.map_err(failed(CLAIM_FAILED))?.rows_affected();
    let live: i64 = sqlx::query_scalar(store.sql(include_str!("sql/claim_live.sql")))
        .bind(&request.sink)
        .bind(now)
        .fetch_one(&mut *tx)
        .await
        .map_err(failed(CLAIM_FAILED))?;

    let mine = i64::try_from(mine).unwrap_or(i64::MAX);
    let missing = fair_share(live) - mine;
    if missing < 0 {
        let give_back = of_holder(include_str!("sql/claim_give_back.sql")).bind(-missing);
        give_back.execute(&mut *tx).await.map_err(failed(CLAIM_FAILED))?;
    } else if missing > 0 {
        let take = of_holder(include_str!("sql/claim_take.sql")).bind(lease).bind(missing).bind(now);
        take.execute(&mut *tx).await.map_err(failed(CLAIM_FAILED))?;
    }

    let held = of_holder(include_str!("sql/claim_held.sql"));
    let held = held.fetch_all(&mut *tx).await.map_err(failed(CLAIM_FAILED))?;
    let cursors: Result<Vec<_>, _> = held.iter().map(cursor).collect();
    let cursors = cursors.map_err(failed("cannot read the cursors"))?;
    store.commit(tx).await?;
    Ok(cursors)
}

fn cursor(columns: &PgRow) -> Result<Cursor, sqlx::Error> {
    Ok(Cursor {
        shard: columns.try_get(0)?,
        fence: columns.try_get(1)?,
        position: columns.try_get(2)?,
        holes: columns.try_get(3)?,
    })
}

pub(super) async fn release(store: &PostgresStore, sink: &str, holder: &str) -> Result<()> {
    let mut tx = store.begin().await?;
    for text in [include_str!("sql/release_cursors.sql"), include_str!("sql/release_member.sql")] {
        let query = sqlx::query(store.sql(text)).bind(sink).bind(holder);
        query.execute(&mut *tx).await.map_err(failed("cannot release shards"))?;
    }
    store.commit(tx).await
}

pub(super) async fn read(store: &PostgresStore, window: Window<'_>) -> Result<Span> {
    let mut wanted = window.holes.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let read = holes(store).begin_read();
    let mut connection = store.pool().acquire().await.map_err(failed(READ_FAILED))?;
    let mut rows = rows(store, &mut connection, &window, &wanted).await?;
    let late = rows.partition_point(|row| row.position <= window.after);
    // Holes beyond the limit were not looked up, and a row above may have to wait for one of them.
    let is_crowded = !wanted.is_empty() && late >= window.limit;
    if is_crowded {
        rows.truncate(late);
    }

    let found: HashSet<Position> = rows.iter().take(late).map(|row| row.position).collect();
    let looked_up = if is_crowded { rows.last().map_or(0, |row| row.position) } else { Position::MAX };
    wanted.retain(|position| !found.contains(position));
    let unknown = wanted.split_off(wanted.partition_point(|position| *position <= looked_up));
    let fresh: Vec<Position> = rows.iter().skip(late).map(|row| row.position).collect();
    let mut is_full = is_crowded || (fresh.len() >= window.limit && window.limit > 0);
    let (seen, has_more) = seen(store, &mut connection, &window, (&fresh, is_full)).await?;
    drop(connection);
    is_full |= has_more;
    let (through, new) = gaps(window.after, seen, MAX_HOLES);
    let reached = rows.partition_point(|row| row.position <= window.after.max(through));
    if reached < rows.len() {
        rows.truncate(reached);
        is_full = true;
    }

    {
        let mut holes = holes(store);
        holes.found(found);
        holes.retain_open(&mut wanted, read);
    }
    let mut open = merged(&wanted, &new);
    check(store, &open).await?;
    open.extend(unknown);
    open.sort_unstable();
    Ok(Span { rows, through, holes: open, full: is_full })
}

/// The rows among the holes, then those above, all by position.
async fn rows(
    store: &PostgresStore,
    connection: &mut PgConnection,
    window: &Window<'_>,
    wanted: &[Position],
) -> Result<Vec<Row>> {
    let above = if wanted.len() > MAX_HOLES { 0 } else { window.limit };
    let text = if wanted.is_empty() {
        include_str!("sql/read.sql")
    } else {
        include_str!("sql/read_with_holes.sql")
    };
    let query = sqlx::query(store.sql(text)).persistent(PLAN_IS_KEPT);
    let mut query = query.bind(window.after).bind(mask(window.shards)).bind(limit(above));
    if !wanted.is_empty() {
        query = query.bind(wanted).bind(limit(window.limit));
    }
    // Rows become envelopes while the server sends the next ones.
    let mut columns = query.fetch(connection);
    let mut rows = Vec::new();
    while let Some(columns) = columns.try_next().await.map_err(failed(READ_FAILED))? {
        rows.push(row::row(&columns).map_err(failed(READ_FAILED))?);
    }
    Ok(rows)
}

/// The shards as bits. There are fewer than an `integer` has.
fn mask(shards: &[Shard]) -> i32 {
    shards.iter().fold(0, |mask, shard| mask | 1_i32.wrapping_shl(shard.unsigned_abs().into()))
}

/// The positions above that are taken by a visible row of any shard, ascending,
/// and none of which is missing below the last one; and whether rows of these
/// shards have appeared since they were read.
async fn seen(
    store: &PostgresStore,
    connection: &mut PgConnection,
    window: &Window<'_>,
    (fresh, is_full): (&[Position], bool),
) -> Result<(Vec<Position>, bool)> {
    let is_every_shard = window.shards.len() >= SHARDS.unsigned_abs().into();
    let last = fresh.last().copied().unwrap_or(window.after);
    let upper = if is_full { last } else { Position::MAX };
    if is_every_shard || window.holes.len() > MAX_HOLES || upper <= window.after {
        return Ok((fresh.to_vec(), false));
    }
    let (foreign, missed) = sqlx::query_as(store.sql(include_str!("sql/read_foreign.sql")))
        .persistent(PLAN_IS_KEPT)
        .bind(window.after)
        .bind(upper)
        .bind(window.shards)
        .bind(limit(FOREIGN_LIMIT))
        .bind(last)
        .fetch_one(connection)
        .await
        .map_err(failed(READ_FAILED))?;
    let foreign: Vec<Position> = foreign;
    let mut seen = merged(fresh, &foreign);
    // Past the limit nothing is known about other shards.
    if let (Some(last), true) = (foreign.last(), foreign.len() >= FOREIGN_LIMIT) {
        seen.truncate(seen.partition_point(|position| position <= last));
    }
    // Rows that were committed between the two statements are for the next read. To go beyond the
    // first of them would make a hole of each, and a large transaction would be read hole by hole.
    let missed: Option<Position> = missed;
    if let Some(missed) = missed {
        seen.truncate(seen.partition_point(|position| *position < missed));
    }
    Ok((seen, missed.is_some()))
}

/// Learns who may still fill the open holes.
async fn check(store: &PostgresStore, open: &[Position]) -> Result<()> {
    if open.is_empty() || !holes(store).is_check_due() {
        return Ok(());
    }
    let writers: Vec<String> = sqlx::query_scalar(store.sql(include_str!("sql/writers.sql")))
        .fetch_all(store.pool())
        .await
        .map_err(failed("cannot read who writes to the outbox"))?;
    holes(store).judge(open, Writers::from_iter(writers));
    Ok(())
}

fn holes(store: &PostgresStore) -> MutexGuard<'_, Holes> {
    store.holes.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) async fn settle(
    store: &PostgresStore,
    settlement: &Settlement,
    now: Option<Timestamp>,
) -> Result<()> {
    let is_only_progress =
        settlement.park.is_empty() && settlement.unpark.is_empty() && settlement.free.is_empty();
    if is_only_progress && settlement.progress.is_some() {
        let mut connection = store.pool().acquire().await.map_err(failed(SETTLE_FAILED))?;
        return advance(store, &mut connection, settlement, now).await;
    }
    let mut tx = store.begin().await?;
    advance(store, &mut tx, settlement, now).await?;
    if !settlement.park.is_empty() {
        park(store, &mut tx, settlement, now).await?;
    }
    if !settlement.unpark.is_empty() {
        let unpark = sqlx::query(store.sql(include_str!("sql/unpark.sql")));
        let unpark = unpark.bind(&settlement.sink).bind(&settlement.unpark);
        unpark.execute(&mut *tx).await.map_err(failed(SETTLE_FAILED))?;
    }
    let lanes = (settlement.free.as_slice(), settlement.skip_dead);
    free(store, &mut tx, &settlement.sink, lanes, now).await?;
    store.commit(tx).await
}

/// Moves the cursors, or locks them where they stand; refuses if one has another owner.
async fn advance(
    store: &PostgresStore,
    connection: &mut PgConnection,
    settlement: &Settlement,
    now: Option<Timestamp>,
) -> Result<()> {
    let (shards, fences): (Vec<Shard>, Vec<i64>) = settlement.fences.iter().copied().unzip();
    let text = match settlement.progress {
        Some(_) => include_str!("sql/settle_progress.sql"),
        None => include_str!("sql/settle_fences.sql"),
    };
    let mut query = sqlx::query(store.sql(text)).bind(&settlement.sink).bind(&shards).bind(fences);
    if let Some((position, holes)) = &settlement.progress {
        query = query.bind(position).bind(holes).bind(clock(now));
    }
    let done = query.execute(connection).await.map_err(failed(SETTLE_FAILED))?;
    if usize::try_from(done.rows_affected()) == Ok(shards.len()) {
        return Ok(());
    }
    Err(Error::new(Kind::Fenced, format!("a shard of sink {} has another owner", settlement.sink)))
}

async fn park(
    store: &PostgresStore,
    tx: &mut PgConnection,
    settlement: &Settlement,
    now: Option<Timestamp>,
) -> Result<()> {
    fn each<'p, T>(park: &'p [Park], column: impl Fn(&'p Park) -> T) -> Vec<T> {
        park.iter().map(column).collect()
    }
    let park = settlement.park.as_slice();
    sqlx::query(store.sql(include_str!("sql/park.sql")))
        .bind(&settlement.sink)
        .bind(each(park, |p| p.position))
        .bind(each(park, |p| p.shard))
        .bind(each(park, |p| p.lane.as_ref().map_or("", |lane| lane.tenant.as_str())))
        .bind(each(park, |p| p.lane.as_ref().map(|lane| lane.key.as_str())))
        .bind(each(park, |p| p.parking.name()))
        .bind(each(park, |p| count(p.attempts)))
        .bind(each(park, |p| match p.parking {
            Parking::Waiting { after } => Some(span(after)),
            Parking::Behind | Parking::Dead => None,
        }))
        .bind(each(park, |p| p.reason.as_deref().map(storable)))
        .bind(clock(now))
        .execute(tx)
        .await
        .map_err(failed("cannot park messages"))?;
    Ok(())
}

/// Lets the next row of each lane be tried. With `skip_dead` a dead letter does not stand in its way.
pub(super) async fn free(
    store: &PostgresStore,
    tx: &mut PgConnection,
    sink: &str,
    (lanes, skip_dead): (&[LaneKey], bool),
    now: Option<Timestamp>,
) -> Result<()> {
    if lanes.is_empty() {
        return Ok(());
    }
    sqlx::query(store.sql(include_str!("sql/free.sql")))
        .bind(sink)
        .bind(lanes.iter().map(|lane| lane.tenant.as_str()).collect::<Vec<_>>())
        .bind(lanes.iter().map(|lane| lane.key.as_str()).collect::<Vec<_>>())
        .bind(skip_dead)
        .bind(clock(now))
        .execute(tx)
        .await
        .map_err(failed("cannot free a lane"))?;
    Ok(())
}

pub(super) async fn due(
    store: &PostgresStore,
    (sink, shards): (&str, &[Shard]),
    rows: usize,
    now: Option<Timestamp>,
) -> Result<Vec<DueRow>> {
    let columns = sqlx::query(store.sql(include_str!("sql/due.sql")))
        .bind(sink)
        .bind(shards)
        .bind(limit(rows))
        .bind(limit(rows.min(RUN_LIMIT)))
        .bind(clock(now))
        .fetch_all(store.pool())
        .await
        .map_err(failed("cannot read parked messages"))?;
    let due = |columns: &PgRow| {
        let attempts: i32 = columns.try_get(AFTER_ENVELOPE)?;
        Ok(DueRow { row: row::row(columns)?, attempts: attempts.unsigned_abs() })
    };
    columns.iter().map(due).collect::<Result<_, _>>().map_err(failed("cannot read parked messages"))
}

pub(super) async fn blocked(
    store: &PostgresStore,
    (sink, shards): (&str, &[Shard]),
    skip_dead: bool,
) -> Result<Vec<LaneKey>> {
    let lanes: Vec<(String, String)> = sqlx::query_as(store.sql(include_str!("sql/blocked.sql")))
        .bind(sink)
        .bind(shards)
        .bind(skip_dead)
        .bind(limit(BLOCKED_LIMIT))
        .fetch_all(store.pool())
        .await
        .map_err(failed("cannot read blocked lanes"))?;
    Ok(lanes.into_iter().map(|(tenant, key)| LaneKey { tenant, key }).collect())
}
