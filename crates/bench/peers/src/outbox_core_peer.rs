//! `outbox-core` with `outbox-postgres`: claim by UPDATE, publish one by one, mark by UPDATE.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use outbox_core::prelude::{Event, OutboxConfig, OutboxError, OutboxProcessor, Transport};
use outbox_postgres::PostgresOutbox;
use serde_json::Value;
use sqlx_08::postgres::PgPoolOptions;

use crate::{Backlog, rate};

/// The table as their documentation sets it up, trigger included.
const TABLES: &str = "
    DROP TABLE IF EXISTS outbox_events;
    DROP TYPE IF EXISTS status;
    CREATE TYPE status AS ENUM ('Pending', 'Processing', 'Sent');
    CREATE TABLE outbox_events (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        idempotency_token text,
        event_type text NOT NULL,
        payload jsonb NOT NULL,
        status status NOT NULL DEFAULT 'Pending',
        created_at timestamptz NOT NULL DEFAULT now(),
        locked_until timestamptz NOT NULL DEFAULT '-infinity');
    CREATE INDEX idx_outbox_processing_queue ON outbox_events (locked_until, status)
        WHERE status IN ('Pending', 'Processing');
    CREATE UNIQUE INDEX idx_outbox_idempotency ON outbox_events (idempotency_token);
    CREATE OR REPLACE FUNCTION notify_outbox_event() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_notify('outbox_event', 'ping'); RETURN new; END $$;
    CREATE TRIGGER outbox_events_notify_trigger AFTER INSERT OR UPDATE ON outbox_events
        FOR EACH ROW EXECUTE FUNCTION notify_outbox_event()";
const FILL: &str = "INSERT INTO outbox_events (event_type, payload, locked_until)
    SELECT 'order', $2::jsonb, 'epoch' FROM generate_series(1, $1)";

struct Null;

impl Transport<Value> for Null {
    fn publish<'s, 'f>(
        &'s self,
        _event: Event<Value>,
    ) -> Pin<Box<dyn Future<Output = Result<(), OutboxError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(std::future::ready(Ok(())))
    }
}

pub(crate) async fn drain(backlog: &Backlog) -> Result<f64, Box<dyn std::error::Error>> {
    let pool = PgPoolOptions::new().max_connections(10).connect(&backlog.url).await?;
    sqlx_08::raw_sql(TABLES).execute(&pool).await?;
    let fill = sqlx_08::query(FILL).bind(backlog.messages as i64).bind(backlog.payload.to_string());
    fill.execute(&pool).await?;
    sqlx_08::raw_sql("VACUUM ANALYZE outbox_events").execute(&pool).await?;
    let mut config = OutboxConfig::default();
    config.batch_size = backlog.batch;
    let config = Arc::new(config);
    let storage = Arc::new(PostgresOutbox::new(pool, Arc::clone(&config)));
    let processor: OutboxProcessor<PostgresOutbox<Value>, Null, Value> =
        OutboxProcessor::new(storage, Arc::new(Null), config);
    let started = Instant::now();
    let mut moved = 0;
    loop {
        match processor.process_pending_events().await? {
            0 => return Ok(rate(moved, started)),
            count => moved += count as u64,
        }
    }
}
