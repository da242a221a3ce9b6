-- Each due head with the rows right behind it. A lane is cut at the first row that is not `behind`, so what
-- is returned of it is always an unbroken run that starts at its head.
WITH head AS (
    SELECT position, attempts, tenant, ordering_key
    FROM oncebox.parked
    WHERE sink = $1 AND state = 'waiting' AND next_at <= coalesce($5, statement_timestamp()) AND shard = ANY ($2)
    ORDER BY next_at
    LIMIT $3
), follower AS (
    SELECT run.position, run.attempts
    FROM head
    CROSS JOIN LATERAL (
        SELECT near.position, near.attempts, bool_and(near.state = 'behind') OVER (ORDER BY near.position) AS joined
        FROM (
            SELECT position, attempts, state
            FROM oncebox.parked
            WHERE sink = $1 AND tenant = head.tenant AND ordering_key = head.ordering_key
                AND position > head.position
            ORDER BY position
            LIMIT $4
        ) AS near
    ) AS run
    WHERE run.joined
)
SELECT
    o.position, o.shard, o.id, o.source, o.type, o.schema_version, o.tenant, o.ordering_key,
    o.destination, o.subject, o.aggregate_type, o.content_type, o.data_schema, o.correlation_id,
    o.causation_id, o.idempotency_key, o.traceparent, o.tracestate, o.baggage, o.headers::text,
    o.created_at, o.payload, p.attempts
FROM (
    SELECT position, attempts FROM head UNION ALL SELECT position, attempts FROM follower
    ORDER BY position
    LIMIT $3
) AS p
JOIN oncebox.outbox AS o ON o.position = p.position
ORDER BY o.position
