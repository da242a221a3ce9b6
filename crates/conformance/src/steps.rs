//! The steps store cases are made of. They expect to succeed; a case that
//! wants a refusal calls the store itself.

use std::time::Duration;

use oncebox_core::log::{
    ClaimRequest, Cursor, LaneKey, Park, Parking, Position, Row, Settlement, Shard, Span, Window,
};
use oncebox_core::{Envelope, Mailbox, Once, Timestamp};

use crate::sample::{ALL_SHARDS, at};

/// The sink of most cases.
pub const SINK: &str = "sink";
/// How long claims last.
pub const LEASE: Duration = Duration::from_secs(30);

/// Puts a batch in a transaction of its own and commits it.
pub async fn put<S: Mailbox>(store: &S, batch: &[Envelope]) -> Vec<Once> {
    put_at(store, batch, at(0)).await
}

/// Puts a batch at a time and commits it.
pub async fn put_at<S: Mailbox>(store: &S, batch: &[Envelope], now: Option<Timestamp>) -> Vec<Once> {
    let mut tx = store.begin().await.unwrap();
    let once = store.put(&mut tx, batch, now).await.unwrap();
    store.commit(tx).await.unwrap();
    once
}

/// Reads a window.
pub async fn read<S: Mailbox>(store: &S, shards: &[Shard], after: Position, limit: usize) -> Span {
    store.read(Window { shards, after, holes: &[], limit }).await.unwrap()
}

/// All rows of the log.
pub async fn log<S: Mailbox>(store: &S) -> Vec<Row> {
    read(store, &ALL_SHARDS, 0, 10_000).await.rows
}

/// The ids of all rows of the log.
pub async fn logged<S: Mailbox>(store: &S) -> Vec<String> {
    ids(&log(store).await)
}

/// The ids of rows, in their order.
#[must_use]
pub fn ids(rows: &[Row]) -> Vec<String> {
    rows.iter()
        .map(|row| row.envelope.as_ref().expect("a row that was put can be understood").id.clone())
        .collect()
}

/// A request for shards of [`SINK`].
#[must_use]
pub fn request(holder: &str) -> ClaimRequest {
    ClaimRequest { sink: SINK.into(), holder: holder.into(), lease: LEASE, outage: None }
}

/// Claims shards of [`SINK`].
pub async fn claim<S: Mailbox>(store: &S, holder: &str, seconds: i64) -> Vec<Cursor> {
    store.claim(&request(holder), at(seconds)).await.unwrap()
}

/// The fences of claimed shards.
#[must_use]
pub fn fences(cursors: &[Cursor]) -> Vec<(Shard, i64)> {
    cursors.iter().map(|cursor| (cursor.shard, cursor.fence)).collect()
}

/// A settlement of [`SINK`] that says nothing yet.
#[must_use]
pub fn settlement(cursors: &[Cursor]) -> Settlement {
    Settlement { sink: SINK.into(), fences: fences(cursors), ..Settlement::default() }
}

/// A row as it is put beside the log after one attempt.
#[must_use]
pub fn parked(row: &Row, parking: Parking) -> Park {
    Park {
        position: row.position,
        shard: row.shard,
        lane: row.envelope.as_ref().ok().and_then(LaneKey::of),
        parking,
        attempts: 1,
        reason: Some("refused".into()),
    }
}

/// Waits `seconds` before it is tried again.
#[must_use]
pub const fn waiting(seconds: u64) -> Parking {
    Parking::Waiting { after: Duration::from_secs(seconds) }
}

/// The lane of a key without tenant.
#[must_use]
pub fn lane(key: &str) -> LaneKey {
    LaneKey { tenant: String::new(), key: key.into() }
}

/// The ids of what is due in [`SINK`], in order.
pub async fn due<S: Mailbox>(store: &S, seconds: i64) -> Vec<String> {
    let due = store.due(SINK, &ALL_SHARDS, 100, at(seconds)).await.unwrap();
    ids(&due.into_iter().map(|due| due.row).collect::<Vec<_>>())
}

/// The blocked lanes of [`SINK`], sorted.
pub async fn blocked<S: Mailbox>(store: &S, skip_dead: bool) -> Vec<LaneKey> {
    let mut lanes = store.blocked(SINK, &ALL_SHARDS, skip_dead).await.unwrap();
    lanes.sort();
    lanes
}
