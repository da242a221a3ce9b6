//! The outbox: what producers write, and what people do to dead letters. What
//! relays do to it is in `relay`.

use oncebox_core::log::{ClaimRequest, Cursor, DueRow, LaneKey, Position, Settlement, Shard, Span, Window};
use oncebox_core::{Envelope, Mailbox, Once, Result, Store, Timestamp};
use sqlx::sqlite::SqliteConnection;

use super::error::failed;
use super::row::{self, count};
use super::{SqliteStore, relay};

impl Mailbox for SqliteStore {
    async fn put(
        &self,
        tx: &mut SqliteConnection,
        batch: &[Envelope],
        now: Option<Timestamp>,
    ) -> Result<Vec<Once>> {
        let mut found = Vec::with_capacity(batch.len());
        for envelope in batch {
            let (sql, time) = match envelope.due {
                None => (include_str!("sql/put.sql"), now),
                due => (include_str!("sql/schedule.sql"), due),
            };
            let done = row::store(self.sql(sql), envelope)
                .bind(time.map(Timestamp::micros))
                .execute(&mut *tx)
                .await
                .map_err(failed("cannot write to the outbox"))?;
            found.push(if done.rows_affected() == 0 { Once::Duplicate } else { Once::First });
        }
        Ok(found)
    }

    async fn holds(&self, envelope: &Envelope) -> Result<bool> {
        // With the write lock in hand nobody else is about to decide anything.
        let mut tx = self.begin().await?;
        let held = sqlx::query_scalar(self.sql(include_str!("sql/holds.sql")))
            .bind(envelope.tenant.as_str())
            .bind(envelope.source.as_str())
            .bind(envelope.id.as_str())
            .fetch_one(&mut *tx)
            .await
            .map_err(failed("cannot look a message up"))?;
        self.rollback(tx).await?;
        Ok(held)
    }

    async fn promote(&self, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        const WHAT: &str = "cannot move due messages to the log";
        let any: bool = sqlx::query_scalar(self.sql(include_str!("sql/promote_any.sql")))
            .bind(now.map(Timestamp::micros))
            .fetch_one(self.pool())
            .await
            .map_err(failed(WHAT))?;
        if !any {
            return Ok(0);
        }
        let mut tx = self.begin().await?;
        let now = relay::clock(self, &mut tx, now).await?;
        let mut moved = 0;
        for sql in [include_str!("sql/promote_log.sql"), include_str!("sql/promote_remove.sql")] {
            let done = sqlx::query(self.sql(sql))
                .bind(now.micros())
                .bind(count(limit))
                .execute(&mut *tx)
                .await
                .map_err(failed(WHAT))?;
            moved = done.rows_affected();
        }
        self.commit(tx).await?;
        Ok(usize::try_from(moved).unwrap_or(usize::MAX))
    }

    async fn claim(&self, request: &ClaimRequest, now: Option<Timestamp>) -> Result<Vec<Cursor>> {
        relay::claim(self, request, now).await
    }

    async fn read(&self, window: Window<'_>) -> Result<Span> {
        relay::read(self, window).await
    }

    async fn settle(&self, settlement: &Settlement, now: Option<Timestamp>) -> Result<()> {
        relay::settle(self, settlement, now).await
    }

    async fn due(
        &self,
        sink: &str,
        shards: &[Shard],
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<DueRow>> {
        relay::due(self, (sink, shards), limit, now).await
    }

    async fn blocked(&self, sink: &str, shards: &[Shard], skip_dead: bool) -> Result<Vec<LaneKey>> {
        relay::blocked(self, sink, shards, skip_dead).await
    }

    async fn release(&self, sink: &str, holder: &str) -> Result<()> {
        relay::release(self, sink, holder).await
    }

    async fn requeue(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        let done = sqlx::query(self.sql(include_str!("sql/requeue.sql")))
            .bind(sink)
            .bind(position)
            .bind(now.map(Timestamp::micros))
            .execute(self.pool())
            .await
            .map_err(failed("cannot requeue a dead letter"))?;
        Ok(done.rows_affected() > 0)
    }

    async fn discard(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        const WHAT: &str = "cannot discard a dead letter";
        let mut tx = self.begin().await?;
        let gone: Option<(String, Option<String>)> =
            sqlx::query_as(self.sql(include_str!("sql/discard.sql")))
                .bind(sink)
                .bind(position)
                .fetch_optional(&mut *tx)
                .await
                .map_err(failed(WHAT))?;
        let Some((tenant, key)) = gone else {
            self.rollback(tx).await?;
            return Ok(false);
        };
        if let Some(key) = key {
            let now = relay::clock(self, &mut tx, now).await?;
            // Other dead letters of the lane, if any, keep blocking it.
            relay::free(self, &mut tx, (sink, &[LaneKey { tenant, key }], false), now).await?;
        }
        self.commit(tx).await?;
        Ok(true)
    }
}
