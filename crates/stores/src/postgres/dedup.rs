//! The inbox's memory: markers, replies and dead letters.

use oncebox_core::cloudevents;
use oncebox_core::store::{Burial, Mark, Marked};
use oncebox_core::{Dedup, Envelope, Error, Kind, Result, Timestamp};
use serde_json::Value;
use sqlx::PgConnection;

use super::error::failed;
use super::row::{Time, clock, count, span, storable};
use super::store::PostgresStore;

impl Dedup for PostgresStore {
    async fn mark(&self, tx: &mut PgConnection, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<Marked> {
        let done = sqlx::query(self.sql(include_str!("sql/mark.sql")))
            .bind(mark.tenant)
            .bind(mark.handler)
            .bind(&mark.key.source)
            .bind(&mark.key.id)
            .bind(mark.digest.as_bytes().as_slice())
            .bind(clock(now))
            .bind(mark.time.map(Time))
            .bind(mark.window.map(span))
            .execute(&mut *tx)
            .await
            .map_err(failed("cannot write the marker"))?;
        if done.rows_affected() > 0 {
            return Ok(Marked::First);
        }
        let marker: Option<(Vec<u8>, Option<Vec<u8>>)> =
            sqlx::query_as(self.sql(include_str!("sql/marked.sql")))
                .bind(mark.tenant)
                .bind(mark.handler)
                .bind(&mark.key.source)
                .bind(&mark.key.id)
                .fetch_optional(tx)
                .await
                .map_err(failed("cannot read the marker"))?;
        match marker {
            Some((digest, result)) if digest == mark.digest.as_bytes() => Ok(Marked::Duplicate { result }),
            Some(_) => Ok(Marked::Conflict),
            None if mark.time.is_some() && mark.window.is_some() => Ok(Marked::TooOld),
            // Purged between the two statements.
            None => Err(Error::new(Kind::Contention, "the marker vanished while it was read")),
        }
    }

    async fn enter(&self, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<u32> {
        let entries: i32 = sqlx::query_scalar(self.sql(include_str!("sql/enter.sql")))
            .bind(mark.tenant)
            .bind(mark.handler)
            .bind(mark.key.source.as_str())
            .bind(mark.key.id.as_str())
            .bind(clock(now))
            .fetch_one(self.pool())
            .await
            .map_err(failed("cannot count a handler's run"))?;
        Ok(entries.unsigned_abs())
    }

    async fn leave(&self, tx: &mut PgConnection, mark: &Mark<'_>) -> Result<()> {
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

    async fn reply(&self, tx: &mut PgConnection, mark: &Mark<'_>, result: &[u8]) -> Result<()> {
        sqlx::query(self.sql(include_str!("sql/reply.sql")))
            .bind(mark.tenant)
            .bind(mark.handler)
            .bind(&mark.key.source)
            .bind(&mark.key.id)
            .bind(result)
            .execute(tx)
            .await
            .map_err(failed("cannot store the reply"))?;
        Ok(())
    }

    async fn bury(&self, burial: &Burial<'_>, now: Option<Timestamp>) -> Result<()> {
        let envelope = burial.envelope;
        sqlx::query(self.sql(include_str!("sql/bury.sql")))
            .bind(storable(burial.channel))
            .bind(storable(burial.handler))
            .bind(storable(&envelope.tenant))
            .bind(storable(&envelope.source))
            .bind(storable(&envelope.id))
            .bind(envelope.digest().as_bytes().as_slice())
            .bind(storable(burial.code))
            .bind(storable(burial.reason))
            .bind(count(burial.attempts))
            .bind(attributes(envelope).to_string())
            .bind(&envelope.payload)
            .bind(clock(now))
            .execute(self.pool())
            .await
            .map_err(failed("cannot store the dead letter"))?;
        Ok(())
    }
}

/// What is kept of a message, in a column that cannot hold everything.
fn attributes(envelope: &Envelope) -> Value {
    clean(cloudevents::to_attributes(envelope))
}

/// `jsonb` cannot hold U+0000 either, and a message from elsewhere may carry it anywhere.
fn clean(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(storable(&text).into_owned()),
        Value::Array(items) => Value::Array(items.into_iter().map(clean).collect()),
        Value::Object(fields) => Value::Object(
            fields.into_iter().map(|(name, value)| (storable(&name).into_owned(), clean(value))).collect(),
        ),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_message_has_no_payload_and_no_nul() {
        let mut envelope =
            Envelope { id: "a\0b".into(), payload: b"{\"x\":1}".to_vec(), ..Envelope::default() };
        envelope.headers.insert("h\0".into(), "v\0".into());

        let text = attributes(&envelope).to_string();

        // Headers are JSON within a text, where an escaped NUL is six harmless characters.
        assert!(!text.replace(r"\\u0000", "").contains(r"\u0000"), "{text}");
        assert!(!text.contains("\"data"), "{text}");
    }
}
