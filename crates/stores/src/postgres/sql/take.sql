-- SKIP LOCKED: workers that look at once each take different rows instead of waiting. What others hold stands in
-- front and is passed over. ANY over an array keeps the plan to single look-ups by key, whatever the statistics say.
WITH due AS MATERIALIZED (
    SELECT d.number, d.due_at
    FROM unnest($3::text[], $4::bigint[]) AS want (handler, most)
    CROSS JOIN LATERAL (
        SELECT r.number, r.due_at
        FROM oncebox.delivery AS r
        WHERE r.scope = $1 AND r.handler = want.handler
            AND r.state = 'ready' AND r.deaths = 0
            AND r.due_at <= coalesce($8, statement_timestamp())
            AND (
                r.lease_until IS NULL
                OR (r.lease_until <= coalesce($8, statement_timestamp()) AND NOT r.started)
            )
        ORDER BY r.due_at, r.number
        LIMIT want.most
        FOR UPDATE SKIP LOCKED
    ) AS d
    ORDER BY d.due_at, d.number
    LIMIT $5
), taken AS (
    UPDATE oncebox.delivery AS d
    SET holder = $2, fence = d.fence + 1,
        lease_until = coalesce($8, clock_timestamp()) + $7 * interval '1 microsecond',
        started = d.number = ANY (ARRAY(SELECT number FROM due ORDER BY due_at, number LIMIT $6)),
        attempts = d.attempts
            + (d.number = ANY (ARRAY(SELECT number FROM due ORDER BY due_at, number LIMIT $6)))::integer
    WHERE d.number = ANY (ARRAY(SELECT number FROM due))
    RETURNING d.number, d.fence, d.handler, d.message, d.key_source, d.key_id, d.lane, d.attempts,
        d.deaths, d.generation, d.started
)
SELECT
    t.number, t.fence, t.handler, m.channel, t.key_source, t.key_id, t.lane,
    t.attempts + (NOT t.started)::integer, t.deaths, t.generation, t.started, m.received_at, m.attributes, m.payload
FROM taken AS t
JOIN oncebox.message AS m ON m.number = t.message
JOIN due ON due.number = t.number
ORDER BY due.due_at, t.number
