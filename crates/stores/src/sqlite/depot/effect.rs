//! What a run has caused outside, so that the next run does not cause it again.

use oncebox_core::depot::Ticket;
use oncebox_core::{Result, Timestamp};

use super::super::SqliteStore;
use super::super::error::failed;
use super::{fenced, held};

pub(super) async fn intend(
    store: &SqliteStore,
    ticket: Ticket,
    name: &str,
    now: Option<Timestamp>,
) -> Result<Option<Vec<u8>>> {
    sqlx::query_scalar(store.sql(include_str!("../sql/effect_intend.sql")))
        .bind(ticket.number)
        .bind(ticket.fence)
        .bind(name)
        .bind(now.map(Timestamp::micros))
        .fetch_optional(store.pool())
        .await
        .map_err(failed("cannot remember an intent"))?
        .ok_or_else(|| fenced(ticket))
}

pub(super) async fn record(store: &SqliteStore, ticket: Ticket, name: &str, result: &[u8]) -> Result<()> {
    let done = sqlx::query(store.sql(include_str!("../sql/effect_record.sql")))
        .bind(ticket.number)
        .bind(ticket.fence)
        .bind(name)
        .bind(result)
        .execute(store.pool())
        .await
        .map_err(failed("cannot remember a result"))?;
    held(ticket, &done)
}
