-- A row in front that is not due yet holds back later rows of its lane, even
-- those that have a time of their own.
SELECT p.position, p.shard, o.id, o.source, o.type, o.schema_version, o.tenant, o.ordering_key, o.destination,
    o.content_type, o.created_at, o.payload,
    CASE WHEN coalesce(o.subject, o.aggregate_type, o.data_schema, o.correlation_id, o.causation_id,
            o.idempotency_key, o.traceparent, o.tracestate, o.baggage, nullif(o.headers, '{}')) IS NOT NULL
        THEN json_array(CAST(o.subject AS TEXT), CAST(o.aggregate_type AS TEXT), CAST(o.data_schema AS TEXT),
            CAST(o.correlation_id AS TEXT), CAST(o.causation_id AS TEXT), CAST(o.idempotency_key AS TEXT),
            CAST(o.traceparent AS TEXT), CAST(o.tracestate AS TEXT), CAST(o.baggage AS TEXT),
            CAST(o.headers AS TEXT))
    END AS extras,
    p.attempts, p.tenant, p.ordering_key
FROM oncebox_parked AS p LEFT JOIN oncebox_outbox AS o ON o.position = p.position
WHERE p.sink = ?1 AND p.state = 'waiting' AND p.next_at <= ?3 AND (?2 >> p.shard) & 1
    AND NOT EXISTS (
        SELECT 1 FROM oncebox_parked AS front INDEXED BY oncebox_parked_lane
        WHERE front.sink = ?1 AND front.tenant = p.tenant AND front.ordering_key = p.ordering_key
            AND front.position < p.position AND front.state = 'waiting' AND front.next_at > ?3)
ORDER BY p.next_at, p.position
LIMIT ?4;
