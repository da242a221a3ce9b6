-- $2 has a bit for each shard. Of `shard = ANY (...)` the planner thinks, until the table is analysed,
-- that hardly a row passes, and then sorts all there are instead of walking the index up to the limit.
SELECT
    position, shard, id, source, type, schema_version, tenant, ordering_key, destination, subject,
    aggregate_type, content_type, data_schema, correlation_id, causation_id, idempotency_key,
    traceparent, tracestate, baggage, headers::text, created_at, payload
FROM oncebox.outbox
WHERE position > $1 AND (1 << shard) & $2 <> 0
ORDER BY position
LIMIT $3
