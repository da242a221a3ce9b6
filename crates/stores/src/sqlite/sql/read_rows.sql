-- ?2 has the bit of each wanted shard set.
SELECT o.position, o.shard, o.id, o.source, o.type, o.schema_version, o.tenant, o.ordering_key, o.destination,
    o.subject, o.aggregate_type, o.content_type, o.data_schema, o.correlation_id, o.causation_id,
    o.idempotency_key, o.traceparent, o.tracestate, o.baggage, o.headers, o.created_at, o.payload
FROM oncebox_outbox AS o
WHERE o.position > ?1 AND (?2 >> o.shard) & 1
ORDER BY o.position
LIMIT ?3;
