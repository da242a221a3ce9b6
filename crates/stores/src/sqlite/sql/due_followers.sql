-- In lane order; whoever reads stops at the first that is not behind.
SELECT p.position, p.shard, o.id, o.source, o.type, o.schema_version, o.tenant, o.ordering_key, o.destination,
    o.subject, o.aggregate_type, o.content_type, o.data_schema, o.correlation_id, o.causation_id,
    o.idempotency_key, o.traceparent, o.tracestate, o.baggage, o.headers, o.created_at, o.payload,
    p.attempts, p.state
FROM oncebox_parked AS p LEFT JOIN oncebox_outbox AS o ON o.position = p.position
WHERE p.sink = ?1 AND p.tenant = ?2 AND p.ordering_key = ?3 AND p.position > ?4
ORDER BY p.position
LIMIT ?5;
