-- From each handler that has something open to the next, without looking at its rows.
WITH RECURSIVE known AS (
    (
        SELECT scope, handler
        FROM oncebox.delivery
        WHERE state <> 'discarded'
        ORDER BY scope, handler
        LIMIT 1
    )
    UNION ALL
    SELECT later.scope, later.handler
    FROM known
    CROSS JOIN LATERAL (
        SELECT d.scope, d.handler
        FROM oncebox.delivery AS d
        WHERE d.state <> 'discarded' AND (d.scope, d.handler) > (known.scope, known.handler)
        ORDER BY d.scope, d.handler
        LIMIT 1
    ) AS later
), orphan AS MATERIALIZED (
    SELECT o.number
    FROM known
    CROSS JOIN LATERAL (
        SELECT d.number
        FROM oncebox.delivery AS d
        WHERE d.scope = known.scope AND d.handler = known.handler AND d.state = 'ready' AND d.lease_until IS NULL
            AND d.due_at < coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
        ORDER BY d.due_at, d.number
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ) AS o
    WHERE NOT EXISTS (
        SELECT FROM oncebox.handler AS h
        WHERE h.scope = known.scope AND h.handler = known.handler
            AND h.seen_at >= coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
    )
    LIMIT $2
)
UPDATE oncebox.delivery
SET state = 'parked'
WHERE number = ANY (ARRAY(SELECT number FROM orphan))
RETURNING scope, handler, tenant, lane
