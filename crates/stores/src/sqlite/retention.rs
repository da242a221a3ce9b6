//! Forgetting, a bounded number of rows at a time.

use std::time::Duration;

use oncebox_core::store::{Purge, Retention};
use oncebox_core::timestamp::micros;
use oncebox_core::{Result, Store, Timestamp};

use super::error::failed;
use super::row::count;
use super::{SqliteStore, relay};

const PURGE: &str = "cannot purge";

impl Retention for SqliteStore {
    async fn purge(&self, purge: &Purge, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        let (sql, age, handler) = match purge {
            Purge::Outbox(age) => (include_str!("sql/purge_outbox.sql"), *age, None),
            Purge::Markers { handler, older_than } => {
                (include_str!("sql/purge_markers.sql"), *older_than, Some(handler.as_str()))
            }
            Purge::Relays(age) => (include_str!("sql/purge_relays.sql"), *age, None),
            Purge::Entries(age) => (include_str!("sql/purge_entries.sql"), *age, None),
            Purge::Messages(age) => (include_str!("sql/purge_messages.sql"), *age, None),
            Purge::Deliveries { scope, handler, older_than } => {
                return purge_deliveries(self, (scope, handler), (*older_than, limit), now).await;
            }
        };
        let mut query =
            sqlx::query(self.sql(sql)).bind(micros(age)).bind(count(limit)).bind(now.map(Timestamp::micros));
        if let Some(handler) = handler {
            query = query.bind(handler);
        }
        let done = query.execute(self.pool()).await.map_err(failed(PURGE))?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }

    async fn hold_broom(&self, holder: &str, lease: Duration, now: Option<Timestamp>) -> Result<bool> {
        let done = sqlx::query(self.sql(include_str!("sql/hold_broom.sql")))
            .bind(holder)
            .bind(micros(lease))
            .bind(now.map(Timestamp::micros))
            .execute(self.pool())
            .await
            .map_err(failed("cannot take the broom"))?;
        Ok(done.rows_affected() > 0)
    }
}

async fn purge_deliveries(
    store: &SqliteStore,
    (scope, handler): (&str, &str),
    (age, limit): (Duration, usize),
    now: Option<Timestamp>,
) -> Result<usize> {
    let mut tx = store.begin().await?;
    let now = relay::clock(store, &mut tx, now).await?;
    let mut gone = 0;
    for sql in [include_str!("sql/purge_effects.sql"), include_str!("sql/purge_deliveries.sql")] {
        let done = sqlx::query(store.sql(sql))
            .bind(micros(age))
            .bind(count(limit))
            .bind(now.micros())
            .bind(handler)
            .bind(scope)
            .execute(&mut *tx)
            .await
            .map_err(failed(PURGE))?;
        gone = done.rows_affected();
    }
    store.commit(tx).await?;
    Ok(usize::try_from(gone).unwrap_or(usize::MAX))
}
