-- In lane order; whoever reads stops at the first that is not behind.
SELECT p.position, p.shard, o.id, o.source, o.type, o.schema_version, o.tenant, o.ordering_key, o.destination,
    o.content_type, o.created_at, o.payload,
    CASE WHEN coalesce(o.subject, o.aggregate_type, o.data_schema, o.correlation_id, o.causation_id,
            o.idempotency_key, o.traceparent, o.tracestate, o.baggage, nullif(o.headers, '{}')) IS NOT NULL
        THEN json_array(CAST(o.subject AS TEXT), CAST(o.aggregate_type AS TEXT), CAST(o.data_schema AS TEXT),
            CAST(o.correlation_id AS TEXT), CAST(o.causation_id AS TEXT), CAST(o.idempotency_key AS TEXT),
            CAST(o.traceparent AS TEXT), CAST(o.tracestate AS TEXT), CAST(o.baggage AS TEXT),
            CAST(o.headers AS TEXT))
    END AS extras,
    p.attempts, p.state
FROM oncebox_parked AS p LEFT JOIN oncebox_outbox AS o ON o.position = p.position
WHERE p.sink = ?1 AND p.tenant = ?2 AND p.ordering_key = ?3 AND p.position > ?4
ORDER BY p.position
LIMIT ?5;
