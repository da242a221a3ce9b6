//! Renewing leases. On the pool: while a handler has the write lock nobody can
//! take anything, so a renewal that waits for it loses nothing.

use std::time::Duration;

use oncebox_core::depot::Ticket;
use oncebox_core::timestamp::micros;
use oncebox_core::{Result, Timestamp};

use super::super::SqliteStore;
use super::super::error::failed;
use super::{good, text};

pub(super) async fn renew(
    store: &SqliteStore,
    tickets: &[Ticket],
    lease: Duration,
    now: Option<Timestamp>,
) -> Result<Vec<bool>> {
    if tickets.is_empty() {
        return Ok(Vec::new());
    }
    let found = sqlx::query_as(store.sql(include_str!("../sql/renew.sql")))
        .bind(text(tickets))
        .bind(micros(lease))
        .bind(now.map(Timestamp::micros))
        .fetch_all(store.pool())
        .await
        .map_err(failed("cannot renew leases"))?;
    Ok(good(tickets, &found))
}
