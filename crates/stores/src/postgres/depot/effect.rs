//! What a run has caused outside, so that the next run does not cause it again.

use oncebox_core::depot::Ticket;
use oncebox_core::{Result, Store, Timestamp};

use super::super::error::failed;
use super::super::row::{clock, storable};
use super::super::store::PostgresStore;
use super::fenced;

pub(super) async fn intend(
    store: &PostgresStore,
    ticket: Ticket,
    name: &str,
    now: Option<Timestamp>,
) -> Result<Option<Vec<u8>>> {
    let mut tx = store.begin().await?;
    let result: Option<Option<Vec<u8>>> =
        sqlx::query_scalar(store.sql(include_str!("../sql/effect_intend.sql")))
            .bind(ticket.number)
            .bind(ticket.fence)
            .bind(storable(name))
            .bind(clock(now))
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed("cannot remember an intent"))?;
    store.commit(tx).await?;
    result.ok_or_else(|| fenced(ticket))
}

pub(super) async fn record(store: &PostgresStore, ticket: Ticket, name: &str, result: &[u8]) -> Result<()> {
    let mut tx = store.begin().await?;
    let done = sqlx::query(store.sql(include_str!("../sql/effect_record.sql")))
        .bind(ticket.number)
        .bind(ticket.fence)
        .bind(storable(name))
        .bind(result)
        .execute(&mut *tx)
        .await
        .map_err(failed("cannot remember a result"))?;
    store.commit(tx).await?;
    if done.rows_affected() == 0 { Err(fenced(ticket)) } else { Ok(()) }
}
