//! Forgetting, within bounds. What may go is decided inside the statements.

use oncebox_core::store::Purge;
use oncebox_core::{Result, Retention, Timestamp};

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
        };
        let mut query = sqlx::query(self.sql(text)).bind(span(age)).bind(limit(rows)).bind(clock(now));
        if let Purge::Markers { handler, .. } = purge {
            query = query.bind(handler);
        }
        let done = query.execute(self.pool()).await.map_err(failed(what))?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }
}
