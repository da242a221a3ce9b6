-- From each handler that has something open to the next, without looking at what is done.
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
)
SELECT
    known.scope, known.handler,
    -- More than can be counted are that many, leased or not.
    CASE WHEN total.ready_or_leased < $1 THEN total.ready_or_leased - total.leased ELSE $1 END,
    total.leased, total.behind, total.parked, total.dead,
    (
        SELECT m.received_at
        FROM oncebox.delivery AS d
        JOIN oncebox.message AS m ON m.number = d.message
        WHERE d.number = total.first
    ),
    clock_timestamp()
FROM known
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE stage.state = 'ready') AS ready_or_leased,
        count(*) FILTER (WHERE each.lease_until IS NOT NULL) AS leased,
        count(*) FILTER (WHERE stage.state = 'behind') AS behind,
        count(*) FILTER (WHERE stage.state = 'parked') AS parked,
        count(*) FILTER (WHERE stage.state = 'dead') AS dead,
        min(each.number) AS first
    FROM (VALUES ('ready'), ('behind'), ('parked'), ('dead')) AS stage (state)
    CROSS JOIN LATERAL (
        SELECT d.number, d.lease_until
        FROM oncebox.delivery AS d
        WHERE d.scope = known.scope AND d.handler = known.handler AND d.state <> 'discarded'
            AND d.state = stage.state
        ORDER BY d.due_at, d.number
        LIMIT $1
    ) AS each
) AS total
ORDER BY known.scope, known.handler
