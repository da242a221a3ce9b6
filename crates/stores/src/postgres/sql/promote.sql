-- A message enters the log when its time comes, and that is its time. Relays that promote at once share the work.
WITH due AS (
    DELETE FROM oncebox.scheduled
    WHERE ctid = ANY (ARRAY(
        SELECT ctid
        FROM oncebox.scheduled
        WHERE due_at <= coalesce($2, statement_timestamp())
        ORDER BY due_at, tenant, source, id
        LIMIT $1
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING *
)
INSERT INTO oncebox.outbox (
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, created_at
) SELECT
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, coalesce($2, clock_timestamp())
FROM due
ORDER BY due_at, tenant, source, id
ON CONFLICT DO NOTHING
