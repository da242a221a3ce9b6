//! Forgetting, within bounds. What may go is decided inside the statements.

use std::time::Duration;

use oncebox_core::depot::Number;
use oncebox_core::store::Purge;
use oncebox_core::{Result, Retention, Store, Timestamp};

use super::error::failed;
use super::row::{clock, limit, span};
use super::store::PostgresStore;

impl Retention for PostgresStore {
    async fn purge(&self, purge: &Purge, rows: usize, now: Option<Timestamp>) -> Result<usize> {
        let (text, age, what) = match purge {
            Purge::Outbox(age) => (include_str!("sql/purge_outbox.sql"), *age, "cannot purge the outbox"),
            Purge::Markers { older_than, .. } => {
                (include_str!("sql/purge_markers.sql"), *older_than, "cannot purge markers")
            }
            Purge::Relays(age) => (include_str!("sql/purge_relays.sql"), *age, "cannot purge relays"),
            Purge::Entries(age) => (include_str!("sql/purge_entries.sql"), *age, "cannot purge entries"),
            Purge::Deliveries { older_than, .. } => {
                (include_str!("sql/purge_deliveries.sql"), *older_than, "cannot purge deliveries")
            }
            Purge::Messages(age) => return purge_messages(self, *age, rows, now).await,
        };
        let mut query = sqlx::query(self.sql(text)).bind(span(age)).bind(limit(rows)).bind(clock(now));
        query = match purge {
            Purge::Markers { handler, .. } => query.bind(handler),
            Purge::Deliveries { scope, handler, .. } => query.bind(scope).bind(handler),
            Purge::Outbox(_) | Purge::Relays(_) | Purge::Entries(_) | Purge::Messages(_) => query,
        };
        let done = query.execute(self.pool()).await.map_err(failed(what))?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }

    async fn hold_broom(&self, holder: &str, lease: Duration, now: Option<Timestamp>) -> Result<bool> {
        let done = sqlx::query(self.sql(include_str!("sql/hold_broom.sql")))
            .bind(holder)
            .bind(span(lease))
            .bind(clock(now))
            .execute(self.pool())
            .await
            .map_err(failed("cannot take the right to sweep"))?;
        Ok(done.rows_affected() > 0)
    }
}

/// Locks what seems to be needed no more, and then looks again: in between,
/// somebody may have given one of them to a handler.
async fn purge_messages(
    store: &PostgresStore,
    age: Duration,
    rows: usize,
    now: Option<Timestamp>,
) -> Result<usize> {
    const FAILED: &str = "cannot purge messages";
    let mut tx = store.begin().await?;
    let candidates: Vec<Number> = sqlx::query_scalar(store.sql(include_str!("sql/purge_messages_lock.sql")))
        .bind(span(age))
        .bind(limit(rows))
        .bind(clock(now))
        .fetch_all(&mut *tx)
        .await
        .map_err(failed(FAILED))?;
    let purged = sqlx::query(store.sql(include_str!("sql/purge_messages.sql")))
        .bind(candidates)
        .execute(&mut *tx)
        .await
        .map_err(failed(FAILED))?;
    store.commit(tx).await?;
    Ok(usize::try_from(purged.rows_affected()).unwrap_or(usize::MAX))
}
