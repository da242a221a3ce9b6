//! What relays do to the outbox: share its shards, read it, write progress back.
//!
//! Every change happens under the write lock, so shares and fences need no
//! other care than being read and written in one transaction.

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use oncebox_core::log::{
    ClaimRequest, Cursor, DueRow, LaneKey, MAX_BLOCKED, MAX_HOLES, Park, Parking, Row, SHARDS, Settlement,
    Shard, Span, Window, fair_share,
};
use oncebox_core::{Error, Kind, Result, Store, Timestamp};
use serde_json::json;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::SqliteStore;
use super::error::failed;
use super::row::{AFTER_ROW, count, log_row, positions, positions_text, shard_bits};

const CLAIM: &str = "cannot claim shards";
const READ: &str = "cannot read the outbox log";
const SETTLE: &str = "cannot settle";
const DUE: &str = "cannot read parked messages";
/// One more than a relay is prepared to keep in memory, so that it can tell.
const BLOCKED_LIMIT: usize = MAX_BLOCKED + 1;

/// `now`, or the database's clock. Asked once, so that a transaction sees one time.
pub(super) async fn clock(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    now: Option<Timestamp>,
) -> Result<Timestamp> {
    if let Some(now) = now {
        return Ok(now);
    }
    sqlx::query_scalar(store.sql(include_str!("sql/clock.sql")))
        .fetch_one(tx)
        .await
        .map(Timestamp::from_micros)
        .map_err(failed("cannot read the database's clock"))
}

pub(super) async fn claim(
    store: &SqliteStore,
    request: &ClaimRequest,
    now: Option<Timestamp>,
) -> Result<Vec<Cursor>> {
    let mut tx = store.begin().await?;
    let now = clock(store, &mut tx, now).await?;
    let until = now.plus(request.lease);
    announce(store, &mut tx, request, until).await?;
    let (live, mine) = sqlx::query_as::<_, (i64, i64)>(store.sql(include_str!("sql/claim_share.sql")))
        .bind(request.sink.as_str())
        .bind(request.holder.as_str())
        .bind(now.micros())
        .fetch_one(&mut *tx)
        .await
        .map_err(failed(CLAIM))?;
    let surplus = mine - fair_share(live);
    if surplus > 0 {
        sqlx::query(store.sql(include_str!("sql/claim_shed.sql")))
            .bind(request.sink.as_str())
            .bind(request.holder.as_str())
            .bind(surplus)
            .execute(&mut *tx)
            .await
            .map_err(failed(CLAIM))?;
    }
    if surplus < 0 {
        sqlx::query(store.sql(include_str!("sql/claim_take.sql")))
            .bind(request.sink.as_str())
            .bind(request.holder.as_str())
            .bind(until.micros())
            .bind(now.micros())
            .bind(-surplus)
            .execute(&mut *tx)
            .await
            .map_err(failed(CLAIM))?;
    }
    let held = held(store, &mut tx, request).await?;
    store.commit(tx).await?;
    Ok(held)
}

/// Says that this relay is alive, makes the sink's cursors and renews those it holds.
async fn announce(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    request: &ClaimRequest,
    until: Timestamp,
) -> Result<()> {
    sqlx::query(store.sql(include_str!("sql/claim_member.sql")))
        .bind(request.sink.as_str())
        .bind(request.holder.as_str())
        .bind(until.micros())
        .bind(request.outage_text())
        .execute(&mut *tx)
        .await
        .map_err(failed(CLAIM))?;
    sqlx::query(store.sql(include_str!("sql/claim_cursors.sql")))
        .bind(request.sink.as_str())
        .execute(&mut *tx)
        .await
        .map_err(failed(CLAIM))?;
    sqlx::query(store.sql(include_str!("sql/claim_renew.sql")))
        .bind(request.sink.as_str())
        .bind(request.holder.as_str())
        .bind(until.micros())
        .execute(&mut *tx)
        .await
        .map_err(failed(CLAIM))?;
    Ok(())
}

async fn held(store: &SqliteStore, tx: &mut SqliteConnection, request: &ClaimRequest) -> Result<Vec<Cursor>> {
    let rows: Vec<(Shard, i64, i64, String)> = sqlx::query_as(store.sql(include_str!("sql/claim_held.sql")))
        .bind(request.sink.as_str())
        .bind(request.holder.as_str())
        .fetch_all(tx)
        .await
        .map_err(failed(CLAIM))?;
    rows.into_iter()
        .map(|(shard, fence, position, holes)| {
            Ok(Cursor { shard, fence, position, holes: positions(&holes)? })
        })
        .collect()
}

pub(super) async fn release(store: &SqliteStore, sink: &str, holder: &str) -> Result<()> {
    let mut tx = store.begin().await?;
    for sql in [include_str!("sql/release_cursors.sql"), include_str!("sql/release_member.sql")] {
        sqlx::query(store.sql(sql))
            .bind(sink)
            .bind(holder)
            .execute(&mut *tx)
            .await
            .map_err(failed("cannot release shards"))?;
    }
    store.commit(tx).await
}

/// Reads holes and rows. A hole can only be a row that waits for its confirm:
/// positions follow commit order, so nothing appears later below a position
/// that was seen. One whose row is gone is therefore no hole any more.
pub(super) async fn read(store: &SqliteStore, window: Window<'_>) -> Result<Span> {
    let mut connection = store.pool().acquire().await.map_err(failed(READ))?;
    let bits = shard_bits(window.shards);
    let mut rows = Vec::new();
    if !window.holes.is_empty() {
        let query = sqlx::query(store.sql(include_str!("sql/read_holes.sql")))
            .bind(positions_text(window.holes))
            .bind(bits);
        rows = log_rows(query.fetch(&mut *connection)).await?;
    }
    if window.holes.len() > MAX_HOLES {
        return Ok(Span { rows, through: window.after, holes: Vec::new(), full: false });
    }
    // Before the rows: one that is committed in between is simply read next time.
    let end = if reads_all(bits) { window.after } else { end(store, &mut connection).await? };
    let query = match reads_all(bits) {
        true => sqlx::query(store.sql(include_str!("sql/read_all.sql"))).bind(window.after),
        false => sqlx::query(store.sql(include_str!("sql/read_rows.sql"))).bind(window.after).bind(bits),
    };
    let query = query.bind(count(window.limit));
    let mut found = log_rows(query.fetch(&mut *connection)).await?;
    let full = found.len() >= window.limit;
    rows.append(&mut found);
    let last = rows.last().map_or(window.after, |row| row.position).max(window.after);
    let through = if full { last } else { last.max(end) };
    Ok(Span { rows, through, holes: Vec::new(), full })
}

/// Whether no row belongs to anybody else.
fn reads_all(bits: i64) -> bool {
    bits == (1 << SHARDS) - 1
}

async fn end(store: &SqliteStore, connection: &mut SqliteConnection) -> Result<i64> {
    let end: Option<i64> = sqlx::query_scalar(store.sql(include_str!("sql/read_end.sql")))
        .fetch_one(connection)
        .await
        .map_err(failed(READ))?;
    Ok(end.unwrap_or(0))
}

/// Rows become envelopes here while SQLite's own thread reads the next ones.
async fn log_rows(mut found: BoxStream<'_, sqlx::Result<SqliteRow>>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    while let Some(row) = found.try_next().await.map_err(failed(READ))? {
        rows.push(log_row(&row).map_err(failed(READ))?);
    }
    Ok(rows)
}

pub(super) async fn settle(
    store: &SqliteStore,
    settlement: &Settlement,
    now: Option<Timestamp>,
) -> Result<()> {
    let is_only_progress =
        settlement.park.is_empty() && settlement.unpark.is_empty() && settlement.free.is_empty();
    if is_only_progress && settlement.progress.is_some() {
        let mut connection = store.pool().acquire().await.map_err(failed(SETTLE))?;
        return advance(store, &mut connection, settlement, now).await;
    }
    let mut tx = store.begin().await?;
    let now = clock(store, &mut tx, now).await?;
    advance(store, &mut tx, settlement, Some(now)).await?;
    for park in &settlement.park {
        put_aside(store, &mut tx, (&settlement.sink, park), now).await?;
    }
    if !settlement.unpark.is_empty() {
        sqlx::query(store.sql(include_str!("sql/settle_unpark.sql")))
            .bind(settlement.sink.as_str())
            .bind(positions_text(&settlement.unpark))
            .execute(&mut *tx)
            .await
            .map_err(failed(SETTLE))?;
    }
    free(store, &mut tx, (&settlement.sink, &settlement.free, settlement.skip_dead), now).await?;
    store.commit(tx).await
}

/// Moves the cursors, or only makes sure that they are still ours.
async fn advance(
    store: &SqliteStore,
    connection: &mut SqliteConnection,
    settlement: &Settlement,
    now: Option<Timestamp>,
) -> Result<()> {
    let fences = json!(settlement.fences).to_string();
    let ours = match &settlement.progress {
        Some((position, holes)) => sqlx::query(store.sql(include_str!("sql/settle_move.sql")))
            .bind(settlement.sink.as_str())
            .bind(position)
            .bind(positions_text(holes))
            .bind(fences)
            .bind(now.map(Timestamp::micros))
            .execute(connection)
            .await
            .map(|done| i64::try_from(done.rows_affected()).unwrap_or(i64::MAX)),
        None => {
            sqlx::query_scalar(store.sql(include_str!("sql/settle_check.sql")))
                .bind(settlement.sink.as_str())
                .bind(fences)
                .fetch_one(connection)
                .await
        }
    };
    if ours.map_err(failed(SETTLE))? == count(settlement.fences.len()) {
        return Ok(());
    }
    Err(Error::new(Kind::Fenced, "another relay holds a shard of this settlement"))
}

async fn put_aside(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    (sink, park): (&str, &Park),
    now: Timestamp,
) -> Result<()> {
    let next_at = match park.parking {
        Parking::Waiting { after } => Some(now.plus(after).micros()),
        Parking::Behind | Parking::Dead => None,
    };
    sqlx::query(store.sql(include_str!("sql/settle_park.sql")))
        .bind(sink)
        .bind(park.position)
        .bind(park.shard)
        .bind(park.lane.as_ref().map_or("", |lane| lane.tenant.as_str()))
        .bind(park.lane.as_ref().map(|lane| lane.key.as_str()))
        .bind(park.parking.name())
        .bind(i64::from(park.attempts))
        .bind(next_at)
        .bind(park.reason.as_deref())
        .bind(now.micros())
        .execute(tx)
        .await
        .map_err(failed(SETTLE))?;
    Ok(())
}

/// Lets the first parked row of each lane be tried.
pub(super) async fn free(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    (sink, lanes, skip_dead): (&str, &[LaneKey], bool),
    now: Timestamp,
) -> Result<()> {
    if lanes.is_empty() {
        return Ok(());
    }
    let pairs: Vec<(&str, &str)> =
        lanes.iter().map(|lane| (lane.tenant.as_str(), lane.key.as_str())).collect();
    sqlx::query(store.sql(include_str!("sql/settle_free.sql")))
        .bind(sink)
        .bind(json!(pairs).to_string())
        .bind(now.micros())
        .bind(skip_dead)
        .execute(tx)
        .await
        .map_err(failed(SETTLE))?;
    Ok(())
}

/// Heads whose time has come, then as many rows behind them as still fit.
pub(super) async fn due(
    store: &SqliteStore,
    (sink, shards): (&str, &[Shard]),
    limit: usize,
    now: Option<Timestamp>,
) -> Result<Vec<DueRow>> {
    let mut connection = store.pool().acquire().await.map_err(failed(DUE))?;
    let now = clock(store, &mut connection, now).await?;
    let heads = sqlx::query(store.sql(include_str!("sql/due_heads.sql")))
        .bind(sink)
        .bind(shard_bits(shards))
        .bind(now.micros())
        .bind(count(limit))
        .fetch_all(&mut *connection)
        .await
        .map_err(failed(DUE))?;
    let mut due = heads.iter().map(due_row).collect::<Result<Vec<_>>>()?;
    for head in &heads {
        let left = limit.saturating_sub(due.len());
        if left == 0 {
            break;
        }
        due.append(&mut followers(store, &mut connection, (sink, head), left).await?);
    }
    due.sort_unstable_by_key(|due| due.row.position);
    Ok(due)
}

fn due_row(row: &SqliteRow) -> Result<DueRow> {
    let attempts = row.try_get(AFTER_ROW).map_err(failed(DUE))?;
    Ok(DueRow { row: log_row(row).map_err(failed(DUE))?, attempts })
}

/// The rows right behind a head, up to the first that has a state of its own.
async fn followers(
    store: &SqliteStore,
    connection: &mut SqliteConnection,
    (sink, head): (&str, &SqliteRow),
    limit: usize,
) -> Result<Vec<DueRow>> {
    let position: i64 = head.try_get(0).map_err(failed(DUE))?;
    let tenant: String = head.try_get(AFTER_ROW + 1).map_err(failed(DUE))?;
    let key: Option<String> = head.try_get(AFTER_ROW + 2).map_err(failed(DUE))?;
    let Some(key) = key else {
        return Ok(Vec::new());
    };
    let rows = sqlx::query(store.sql(include_str!("sql/due_followers.sql")))
        .bind(sink)
        .bind(tenant)
        .bind(key)
        .bind(position)
        .bind(count(limit))
        .fetch_all(connection)
        .await
        .map_err(failed(DUE))?;
    let is_behind = |row: &&SqliteRow| row.try_get(AFTER_ROW + 1).is_ok_and(|state: &str| state == "behind");
    rows.iter().take_while(is_behind).map(due_row).collect()
}

pub(super) async fn blocked(
    store: &SqliteStore,
    sink: &str,
    shards: &[Shard],
    skip_dead: bool,
) -> Result<Vec<LaneKey>> {
    let lanes: Vec<(String, String)> = sqlx::query_as(store.sql(include_str!("sql/blocked.sql")))
        .bind(sink)
        .bind(shard_bits(shards))
        .bind(skip_dead)
        .bind(count(BLOCKED_LIMIT))
        .fetch_all(store.pool())
        .await
        .map_err(failed("cannot read the blocked keys"))?;
    Ok(lanes.into_iter().map(|(tenant, key)| LaneKey { tenant, key }).collect())
}
