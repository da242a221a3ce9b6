-- For a reader of every shard, which is spared the question: a row's shard is computed whenever it is asked for.
SELECT o.position, o.shard, o.id, o.source, o.type, o.schema_version, o.tenant, o.ordering_key, o.destination,
    o.subject, o.aggregate_type, o.content_type, o.data_schema, o.correlation_id, o.causation_id,
    o.idempotency_key, o.traceparent, o.tracestate, o.baggage, o.headers, o.created_at, o.payload
FROM oncebox_outbox AS o
WHERE o.position > ?1
ORDER BY o.position
LIMIT ?2;
