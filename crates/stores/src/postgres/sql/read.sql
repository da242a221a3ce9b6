SELECT
    position, shard, id, source, type, schema_version, tenant, ordering_key, destination, subject,
    aggregate_type, content_type, data_schema, correlation_id, causation_id, idempotency_key,
    traceparent, tracestate, baggage, headers::text, created_at, payload
FROM oncebox.outbox
WHERE position > $1 AND shard = ANY ($2)
ORDER BY position
LIMIT $3
