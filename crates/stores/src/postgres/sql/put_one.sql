-- The hot path of every producer: one row, no second round trip. An id that still waits in the schedule is taken too.
INSERT INTO oncebox.outbox (
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, created_at
) SELECT
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18::jsonb, $19,
    coalesce($20, clock_timestamp())
WHERE NOT EXISTS (SELECT 1 FROM oncebox.scheduled WHERE tenant = $5 AND source = $2 AND id = $1)
ON CONFLICT (id, source, tenant) DO NOTHING
