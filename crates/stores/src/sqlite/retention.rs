//! Forgetting, a bounded number of rows at a time.

use oncebox_core::store::{Purge, Retention};
use oncebox_core::timestamp::micros;
use oncebox_core::{Result, Timestamp};

use super::SqliteStore;
use super::error::failed;
use super::row::count;

impl Retention for SqliteStore {
    async fn purge(&self, purge: &Purge, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        let (sql, age, handler) = match purge {
            Purge::Outbox(age) => (include_str!("sql/purge_outbox.sql"), *age, None),
            Purge::Markers { handler, older_than } => {
                (include_str!("sql/purge_markers.sql"), *older_than, Some(handler.as_str()))
            }
            Purge::Relays(age) => (include_str!("sql/purge_relays.sql"), *age, None),
            Purge::Entries(age) => (include_str!("sql/purge_entries.sql"), *age, None),
        };
        let mut query =
            sqlx::query(self.sql(sql)).bind(micros(age)).bind(count(limit)).bind(now.map(Timestamp::micros));
        if let Some(handler) = handler {
            query = query.bind(handler);
        }
        let done = query.execute(self.pool()).await.map_err(failed("cannot purge"))?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }
}
