//! The outbox: what producers write, and what people do with dead letters.
//! What relays do with it is in [`relay`](super::relay).

use oncebox_core::log::{ClaimRequest, Cursor, DueRow, LaneKey, Position, Settlement, Shard, Span, Window};
use oncebox_core::{Envelope, Mailbox, Once, Result, Store, Timestamp};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};

use super::error::failed;
use super::relay;
use super::row::{Time, clock, headers_text, limit, schema_version};
use super::store::PostgresStore;

const PUT_FAILED: &str = "cannot put a message into the outbox";

impl Mailbox for PostgresStore {
    async fn put(
        &self,
        tx: &mut PgConnection,
        batch: &[Envelope],
        now: Option<Timestamp>,
    ) -> Result<Vec<Once>> {
        if let [envelope] = batch {
            return Ok(vec![put_one(self, tx, envelope, now).await?]);
        }
        let (at_once, later): (Vec<_>, Vec<_>) = batch.iter().partition(|envelope| envelope.due.is_none());
        let logged = put_many(self, tx, &at_once, now).await?;
        if later.is_empty() {
            return Ok(logged);
        }
        let scheduled = schedule_many(self, tx, &later).await?;
        let (mut logged, mut scheduled) = (logged.into_iter(), scheduled.into_iter());
        let answers = batch
            .iter()
            .map(|envelope| if envelope.due.is_none() { logged.next() } else { scheduled.next() });
        Ok(answers.map(|answer| answer.unwrap_or(Once::Duplicate)).collect())
    }

    async fn holds(&self, envelope: &Envelope) -> Result<bool> {
        // Only a conflicting insert waits for a transaction that has not decided yet. One
        // transaction each: either insert takes the other's row for a duplicate.
        let mut tx = self.begin().await?;
        let mut once = log_one(self, &mut tx, envelope, None).await?;
        self.rollback(tx).await?;
        if once == Once::First && envelope.due.is_some() {
            let mut tx = self.begin().await?;
            once = schedule_one(self, &mut tx, envelope).await?;
            self.rollback(tx).await?;
        }
        Ok(once == Once::Duplicate)
    }

    async fn promote(&self, rows: usize, now: Option<Timestamp>) -> Result<usize> {
        let done = sqlx::query(self.sql(include_str!("sql/promote.sql")))
            .bind(limit(rows))
            .bind(clock(now))
            .execute(self.pool())
            .await
            .map_err(failed("cannot move due messages into the log"))?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
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
        relay::blocked(self, (sink, shards), skip_dead).await
    }

    async fn release(&self, sink: &str, holder: &str) -> Result<()> {
        relay::release(self, sink, holder).await
    }

    async fn requeue(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        let done = sqlx::query(self.sql(include_str!("sql/requeue.sql")))
            .bind(sink)
            .bind(position)
            .bind(clock(now))
            .execute(self.pool())
            .await
            .map_err(failed("cannot requeue a dead letter"))?;
        Ok(done.rows_affected() > 0)
    }

    async fn discard(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        let mut tx = self.begin().await?;
        // One after the other with a relay that settles, which may be parking a row behind this one.
        sqlx::query(self.sql(include_str!("sql/lock_cursors.sql")))
            .bind(sink)
            .execute(&mut *tx)
            .await
            .map_err(failed("cannot discard a dead letter"))?;
        let row = sqlx::query(self.sql(include_str!("sql/discard.sql")))
            .bind(sink)
            .bind(position)
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed("cannot discard a dead letter"))?;
        let Some(row) = row else {
            self.rollback(tx).await?;
            return Ok(false);
        };
        let unreadable = failed("cannot read the lane of a dead letter");
        let (tenant, key) = (row.try_get(0), row.try_get::<Option<String>, _>(1));
        if let (tenant, Some(key)) = tenant.and_then(|t| Ok((t, key?))).map_err(unreadable)? {
            relay::free(self, &mut tx, sink, (&[LaneKey { tenant, key }], false), now).await?;
        }
        self.commit(tx).await?;
        Ok(true)
    }
}

async fn put_one(
    store: &PostgresStore,
    tx: &mut PgConnection,
    envelope: &Envelope,
    now: Option<Timestamp>,
) -> Result<Once> {
    if envelope.due.is_some() {
        schedule_one(store, tx, envelope).await
    } else {
        log_one(store, tx, envelope, now).await
    }
}

async fn log_one(
    store: &PostgresStore,
    tx: &mut PgConnection,
    envelope: &Envelope,
    now: Option<Timestamp>,
) -> Result<Once> {
    let query = bound(sqlx::query(store.sql(include_str!("sql/put_one.sql"))), envelope)?;
    let done = query.bind(clock(now)).execute(tx).await.map_err(failed(PUT_FAILED))?;
    Ok(once(done.rows_affected() > 0))
}

async fn schedule_one(store: &PostgresStore, tx: &mut PgConnection, envelope: &Envelope) -> Result<Once> {
    let query = bound(sqlx::query(store.sql(include_str!("sql/put_scheduled.sql"))), envelope)?;
    let done = query.bind(envelope.due.map(Time)).execute(tx).await.map_err(failed(PUT_FAILED))?;
    Ok(once(done.rows_affected() > 0))
}

async fn put_many(
    store: &PostgresStore,
    tx: &mut PgConnection,
    batch: &[&Envelope],
    now: Option<Timestamp>,
) -> Result<Vec<Once>> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let query = bound_many(sqlx::query(store.sql(include_str!("sql/put_many.sql"))), batch)?;
    let rows = query.bind(clock(now)).fetch_all(tx).await.map_err(failed(PUT_FAILED))?;
    firsts(batch, &rows)
}

async fn schedule_many(
    store: &PostgresStore,
    tx: &mut PgConnection,
    batch: &[&Envelope],
) -> Result<Vec<Once>> {
    let query = bound_many(sqlx::query(store.sql(include_str!("sql/put_scheduled_many.sql"))), batch)?;
    let due: Vec<_> = batch.iter().map(|envelope| envelope.due.map(Time)).collect();
    let rows = query.bind(due).fetch_all(tx).await.map_err(failed(PUT_FAILED))?;
    firsts(batch, &rows)
}

/// The inserted rows come back in the order of the batch, so one walk over both
/// tells which envelopes they are.
fn firsts(batch: &[&Envelope], rows: &[sqlx::postgres::PgRow]) -> Result<Vec<Once>> {
    if rows.len() == batch.len() {
        return Ok(vec![Once::First; batch.len()]);
    }
    let identity = |row: &sqlx::postgres::PgRow| {
        Ok::<(String, String, String), sqlx::Error>((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
    };
    let inserted: Result<Vec<_>, _> = rows.iter().map(identity).collect();
    let mut inserted = inserted.map_err(failed("cannot read what was put"))?.into_iter().peekable();
    let is_first = |envelope: &&Envelope| {
        let is_this = |(tenant, source, id): &(String, String, String)| {
            *id == envelope.id && *source == envelope.source && *tenant == envelope.tenant
        };
        inserted.next_if(is_this).is_some()
    };
    Ok(batch.iter().map(is_first).map(once).collect())
}

const fn once(is_first: bool) -> Once {
    if is_first { Once::First } else { Once::Duplicate }
}

type PgQuery<'q> = Query<'q, Postgres, PgArguments>;

fn bound<'q>(query: PgQuery<'q>, envelope: &'q Envelope) -> Result<PgQuery<'q>> {
    Ok(query
        .bind(envelope.id.as_str())
        .bind(envelope.source.as_str())
        .bind(envelope.kind.as_str())
        .bind(schema_version(envelope)?)
        .bind(envelope.tenant.as_str())
        .bind(envelope.key.as_deref())
        .bind(envelope.destination.as_str())
        .bind(envelope.subject.as_deref())
        .bind(envelope.aggregate_type.as_deref())
        .bind(envelope.content_type.as_str())
        .bind(envelope.data_schema.as_deref())
        .bind(envelope.correlation_id.as_deref())
        .bind(envelope.causation_id.as_deref())
        .bind(envelope.idempotency_key.as_deref())
        .bind(envelope.traceparent.as_deref())
        .bind(envelope.tracestate.as_deref())
        .bind(envelope.baggage.as_deref())
        .bind(headers_text(&envelope.headers)?)
        .bind(envelope.payload.as_slice()))
}

fn bound_many<'q>(query: PgQuery<'q>, batch: &[&'q Envelope]) -> Result<PgQuery<'q>> {
    fn each<'q, T>(batch: &[&'q Envelope], column: impl Fn(&'q Envelope) -> T) -> Vec<T> {
        batch.iter().map(|envelope| column(envelope)).collect()
    }
    let versions: Result<Vec<_>> = batch.iter().map(|envelope| schema_version(envelope)).collect();
    let headers: Result<Vec<_>> = batch.iter().map(|envelope| headers_text(&envelope.headers)).collect();
    Ok(query
        .bind(each(batch, |e| e.id.as_str()))
        .bind(each(batch, |e| e.source.as_str()))
        .bind(each(batch, |e| e.kind.as_str()))
        .bind(versions?)
        .bind(each(batch, |e| e.tenant.as_str()))
        .bind(each(batch, |e| e.key.as_deref()))
        .bind(each(batch, |e| e.destination.as_str()))
        .bind(each(batch, |e| e.subject.as_deref()))
        .bind(each(batch, |e| e.aggregate_type.as_deref()))
        .bind(each(batch, |e| e.content_type.as_str()))
        .bind(each(batch, |e| e.data_schema.as_deref()))
        .bind(each(batch, |e| e.correlation_id.as_deref()))
        .bind(each(batch, |e| e.causation_id.as_deref()))
        .bind(each(batch, |e| e.idempotency_key.as_deref()))
        .bind(each(batch, |e| e.traceparent.as_deref()))
        .bind(each(batch, |e| e.tracestate.as_deref()))
        .bind(each(batch, |e| e.baggage.as_deref()))
        .bind(headers?)
        .bind(each(batch, |e| e.payload.as_slice())))
}
