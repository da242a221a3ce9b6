//! Renewing leases, on a connection of its own: handlers may use up the whole
//! pool, and just then nothing matters more.

use std::time::Duration;

use oncebox_core::depot::{Number, Ticket};
use oncebox_core::{Error, Kind, Result, Timestamp};
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

use super::super::error::failed;
use super::super::row::{clock, span};
use super::super::store::PostgresStore;
use super::{columns, good};

/// How long a renewal may take, with connecting.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn renew(
    store: &PostgresStore,
    tickets: &[Ticket],
    lease: Duration,
    now: Option<Timestamp>,
) -> Result<Vec<bool>> {
    if tickets.is_empty() {
        return Ok(Vec::new());
    }
    let renewal = async {
        let mut kept = store.renewal.lock().await;
        // Out of its place while it is used: a call that is dropped half way
        // takes it along, and no answer is left over for the next one.
        if let Some(mut connection) = kept.take() {
            match ask(store, &mut connection, tickets, (lease, now)).await {
                Ok(found) => {
                    *kept = Some(connection);
                    return Ok(found);
                }
                // It died while it was idle, or with the runtime it was opened on.
                Err(error) if error.kind() == Kind::Unavailable => {}
                Err(error) => return Err(error),
            }
        }
        let options = store.pool().connect_options();
        let mut connection =
            PgConnection::connect_with(&options).await.map_err(failed("cannot connect to renew leases"))?;
        let found = ask(store, &mut connection, tickets, (lease, now)).await?;
        *kept = Some(connection);
        Ok(found)
    };
    let late = |_elapsed| Err(Error::new(Kind::Unavailable, "leases could not be renewed in time"));
    let found = timeout(PATIENCE, renewal).await.unwrap_or_else(late)?;
    Ok(good(tickets, found))
}

async fn ask(
    store: &PostgresStore,
    connection: &mut PgConnection,
    tickets: &[Ticket],
    (lease, now): (Duration, Option<Timestamp>),
) -> Result<Vec<(Number, i64)>> {
    let (numbers, fences) = columns(tickets);
    sqlx::query_as(store.sql(include_str!("../sql/renew.sql")))
        .bind(numbers)
        .bind(fences)
        .bind(span(lease))
        .bind(clock(now))
        .fetch_all(connection)
        .await
        .map_err(failed("cannot renew leases"))
}
