SELECT o.position, o.shard, o.id, o.source, o.type, o.schema_version, o.tenant, o.ordering_key, o.destination,
    o.subject, o.aggregate_type, o.content_type, o.data_schema, o.correlation_id, o.causation_id,
    o.idempotency_key, o.traceparent, o.tracestate, o.baggage, o.headers, o.created_at, o.payload
FROM json_each(?1) AS hole CROSS JOIN oncebox_outbox AS o ON o.position = hole.value
WHERE (?2 >> o.shard) & 1
ORDER BY o.position;
