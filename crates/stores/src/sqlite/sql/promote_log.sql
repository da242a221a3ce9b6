-- The message's time is when it enters the log. The order is total, so that the
-- delete that follows takes the same rows.
INSERT INTO oncebox_outbox (
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, created_at)
SELECT
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, ?1
FROM oncebox_scheduled
WHERE due_at <= ?1
ORDER BY due_at, tenant, source, id
LIMIT ?2
ON CONFLICT (tenant, source, id) DO NOTHING;
