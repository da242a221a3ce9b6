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

/// Something to be asked on that connection.
pub(in super::super) trait Question: Sync {
    type Answer: Send;

    fn ask(&self, on: &mut PgConnection) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// Asks it, and if the connection has died, on another one.
pub(in super::super) async fn answered<Q: Question>(
    store: &PostgresStore,
    question: &Q,
) -> Result<Q::Answer> {
    let renewal = async {
        let mut kept = store.renewal.lock().await;
        // Out of its place while it is used: a call that is dropped half way
        // takes it along, and no answer is left over for the next one.
        if let Some(mut connection) = kept.take() {
            match question.ask(&mut connection).await {
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
        let found = question.ask(&mut connection).await?;
        *kept = Some(connection);
        Ok(found)
    };
    let late = |_elapsed| Err(Error::new(Kind::Unavailable, "leases could not be renewed in time"));
    timeout(PATIENCE, renewal).await.unwrap_or_else(late)
}

/// The leases of deliveries.
struct Renewal<'a> {
    store: &'a PostgresStore,
    tickets: &'a [Ticket],
    lease: Duration,
    now: Option<Timestamp>,
}

impl Question for Renewal<'_> {
    type Answer = Vec<(Number, i64)>;

    async fn ask(&self, on: &mut PgConnection) -> Result<Self::Answer> {
        let (numbers, fences) = columns(self.tickets);
        sqlx::query_as(self.store.sql(include_str!("../sql/renew.sql")))
            .bind(numbers)
            .bind(fences)
            .bind(span(self.lease))
            .bind(clock(self.now))
            .fetch_all(on)
            .await
            .map_err(failed("cannot renew leases"))
    }
}

pub(super) async fn renew(
    store: &PostgresStore,
    tickets: &[Ticket],
    lease: Duration,
    now: Option<Timestamp>,
) -> Result<Vec<bool>> {
    if tickets.is_empty() {
        return Ok(Vec::new());
    }
    let found = answered(store, &Renewal { store, tickets, lease, now }).await?;
    Ok(good(tickets, found))
}
