//! Renewing leases, on the store's hotline.

use std::time::Duration;

use oncebox_core::depot::{Number, Ticket};
use oncebox_core::{Result, Timestamp};
use sqlx::PgConnection;

use super::super::error::failed;
use super::super::hotline::Question;
use super::super::row::{clock, span};
use super::super::store::PostgresStore;
use super::{columns, good};

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
    let found = store.renewals.ask(store, &Renewal { store, tickets, lease, now }).await?;
    Ok(good(tickets, found))
}
