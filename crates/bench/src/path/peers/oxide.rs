//! `outbox-core` with `outbox-postgres`: claim by UPDATE, publish one by one, mark by UPDATE.

use std::pin::Pin;
use std::sync::Arc;

use outbox_core::prelude::{Event, OutboxConfig, OutboxError, OutboxProcessor, Transport};
use outbox_postgres::PostgresOutbox;
use serde_json::Value;
use sqlx_08::postgres::{PgPool, PgPoolOptions};

use super::super::BATCH;
use crate::lab::postgres::PostgresLab;
use crate::order::Order;
use crate::rounds::rate;

/// The table as their documentation sets it up, trigger included.
const TABLES: &str = "
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
    CREATE FUNCTION notify_outbox_event() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_notify('outbox_event', 'ping'); RETURN new; END $$;
    CREATE TRIGGER outbox_events_notify_trigger AFTER INSERT OR UPDATE ON outbox_events
        FOR EACH ROW EXECUTE FUNCTION notify_outbox_event()";

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

/// Their processor on a pool of the sqlx they use.
pub(super) struct Peer {
    processor: OutboxProcessor<PostgresOutbox<Value>, Null, Value>,
}

impl Peer {
    pub(super) async fn create(lab: &PostgresLab) -> Self {
        sqlx::raw_sql(TABLES).execute(lab.pool()).await.expect("their tables");
        let pool: PgPool =
            PgPoolOptions::new().max_connections(10).connect(&lab.url()).await.expect("their pool");
        let mut config = OutboxConfig::default();
        config.batch_size = u32::try_from(BATCH).expect("a batch");
        let config = Arc::new(config);
        let storage = Arc::new(PostgresOutbox::new(pool, Arc::clone(&config)));
        Self { processor: OutboxProcessor::new(storage, Arc::new(Null), config) }
    }

    pub(super) async fn drain(&self, lab: &PostgresLab, backlog: u64) -> f64 {
        sqlx::raw_sql("TRUNCATE outbox_events").execute(lab.pool()).await.expect("an empty table");
        let payload = String::from_utf8(Order::nth(1).payload()).expect("JSON text");
        sqlx::query(
            "INSERT INTO outbox_events (event_type, payload, locked_until)
             SELECT 'order', $2::jsonb, 'epoch' FROM generate_series(1, $1)",
        )
        .bind(backlog.cast_signed())
        .bind(payload)
        .execute(lab.pool())
        .await
        .expect("their backlog");
        sqlx::raw_sql("VACUUM ANALYZE outbox_events").execute(lab.pool()).await.expect("a vacuum");
        rate(async {
            let mut moved = 0;
            loop {
                match self.processor.process_pending_events().await.expect("their pass") {
                    0 => return moved,
                    count => moved += count as u64,
                }
            }
        })
        .await
    }
}
