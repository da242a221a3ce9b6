-- A message that already entered the log must not enter it again later.
INSERT INTO oncebox.scheduled (
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, due_at
) SELECT
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18::jsonb, $19, $20
WHERE NOT EXISTS (SELECT 1 FROM oncebox.outbox WHERE tenant = $5 AND source = $2 AND id = $1)
ON CONFLICT DO NOTHING
