-- One statement, hence one snapshot: a row found above `after` never overtakes a visible one among the holes.
(
    SELECT
        position, shard, id, source, type, schema_version, tenant, ordering_key, destination, subject,
        aggregate_type, content_type, data_schema, correlation_id, causation_id, idempotency_key,
        traceparent, tracestate, baggage, headers::text, created_at, payload
    FROM oncebox.outbox
    WHERE position = ANY ($4) AND shard = ANY ($2)
    ORDER BY position
    LIMIT $5
)
UNION ALL
(
    SELECT
        position, shard, id, source, type, schema_version, tenant, ordering_key, destination, subject,
        aggregate_type, content_type, data_schema, correlation_id, causation_id, idempotency_key,
        traceparent, tracestate, baggage, headers::text, created_at, payload
    FROM oncebox.outbox
    WHERE position > $1 AND shard = ANY ($2)
    ORDER BY position
    LIMIT $3
)
