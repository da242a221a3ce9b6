//! The inbox's memory: markers, replies, dead letters.

use oncebox_core::cloudevents;
use oncebox_core::store::{Burial, Dedup, Mark, Marked};
use oncebox_core::timestamp::micros;
use oncebox_core::{Error, Kind, Result, Timestamp};
use sqlx::sqlite::SqliteConnection;

use super::SqliteStore;
use super::error::failed;

const MARK: &str = "cannot write a marker";

impl Dedup for SqliteStore {
    async fn mark(
        &self,
        tx: &mut SqliteConnection,
        mark: &Mark<'_>,
        now: Option<Timestamp>,
    ) -> Result<Marked> {
        let done = sqlx::query(self.sql(include_str!("sql/mark.sql")))
            .bind(mark.tenant)
            .bind(mark.handler)
            .bind(mark.key.source.as_str())
            .bind(mark.key.id.as_str())
            .bind(mark.digest.as_bytes().as_slice())
            .bind(mark.time.map(Timestamp::micros))
            .bind(mark.window.map(micros))
            .bind(now.map(Timestamp::micros))
            .execute(&mut *tx)
            .await
            .map_err(failed(MARK))?;
        if done.rows_affected() > 0 {
            return Ok(Marked::First);
        }
        let found: Option<(Vec<u8>, Option<Vec<u8>>)> =
            sqlx::query_as(self.sql(include_str!("sql/mark_find.sql")))
                .bind(mark.tenant)
                .bind(mark.handler)
                .bind(mark.key.source.as_str())
                .bind(mark.key.id.as_str())
                .fetch_optional(&mut *tx)
                .await
                .map_err(failed("cannot read a marker"))?;
        match found {
            Some((digest, result)) if digest == mark.digest.as_bytes() => Ok(Marked::Duplicate { result }),
            Some(_) => Ok(Marked::Conflict),
            None if mark.time.is_some() && mark.window.is_some() => Ok(Marked::TooOld),
            None => Err(Error::new(Kind::Contention, "a marker vanished while it was looked at")),
        }
    }

    async fn enter(&self, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<u32> {
        let entries: i32 = sqlx::query_scalar(self.sql(include_str!("sql/enter.sql")))
            .bind(mark.tenant)
            .bind(mark.handler)
            .bind(mark.key.source.as_str())
            .bind(mark.key.id.as_str())
            .bind(now.map(Timestamp::micros))
            .fetch_one(self.pool())
            .await
            .map_err(failed("cannot count a handler's run"))?;
        Ok(entries.unsigned_abs())
    }

    async fn leave(&self, tx: &mut SqliteConnection, mark: &Mark<'_>) -> Result<()> {
        for text in [include_str!("sql/leave.sql"), include_str!("sql/leave_one.sql")] {
            let done = sqlx::query(self.sql(text))
                .bind(mark.tenant)
                .bind(mark.handler)
                .bind(mark.key.source.as_str())
                .bind(mark.key.id.as_str())
                .execute(&mut *tx)
                .await
                .map_err(failed("cannot take back a handler's run"))?;
            if done.rows_affected() > 0 {
                break;
            }
        }
        Ok(())
    }

    async fn reply(&self, tx: &mut SqliteConnection, mark: &Mark<'_>, result: &[u8]) -> Result<()> {
        sqlx::query(self.sql(include_str!("sql/reply.sql")))
            .bind(mark.tenant)
            .bind(mark.handler)
            .bind(mark.key.source.as_str())
            .bind(mark.key.id.as_str())
            .bind(result)
            .execute(tx)
            .await
            .map_err(failed("cannot store a reply"))?;
        Ok(())
    }

    async fn bury(&self, burial: &Burial<'_>, now: Option<Timestamp>) -> Result<()> {
        let envelope = burial.envelope;
        sqlx::query(self.sql(include_str!("sql/bury.sql")))
            .bind(burial.channel)
            .bind(burial.handler)
            .bind(envelope.tenant.as_str())
            .bind(envelope.source.as_str())
            .bind(envelope.id.as_str())
            .bind(envelope.digest().as_bytes().as_slice())
            .bind(burial.code)
            .bind(burial.reason)
            .bind(i64::from(burial.attempts))
            .bind(cloudevents::to_attributes(envelope).to_string())
            .bind(envelope.payload.as_slice())
            .bind(now.map(Timestamp::micros))
            .execute(self.pool())
            .await
            .map_err(failed("cannot store a dead letter"))?;
        Ok(())
    }
}
