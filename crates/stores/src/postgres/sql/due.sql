-- Each due head with the rows right behind it. A lane is cut at the first row that is not `behind`, so what
-- is returned of it is always an unbroken run that starts at its head. A row in front that is not due yet holds
-- back later rows of its lane, even those that have a time of their own.
WITH head AS (
    SELECT p.position, p.attempts, p.tenant, p.ordering_key
    FROM oncebox.parked AS p
    WHERE p.sink = $1 AND p.state = 'waiting' AND p.next_at <= coalesce($5, statement_timestamp())
        AND p.shard = ANY ($2)
        AND NOT EXISTS (
            SELECT FROM oncebox.parked AS front
            WHERE front.sink = $1 AND front.tenant = p.tenant AND front.ordering_key = p.ordering_key
                AND front.position < p.position AND front.state = 'waiting'
                AND front.next_at > coalesce($5, statement_timestamp())
        )
    ORDER BY p.next_at, p.position
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
