-- SKIP LOCKED: workers that look at once each take different rows instead of waiting. What others hold stands in
-- front and is passed over. ANY over an array of places keeps the plan from reading the table, whatever the statistics
-- say. A row that was moved since the statement began is not found there, and is taken by the next one.
WITH due AS MATERIALIZED (
    SELECT d.number, d.due_at, d.place
    FROM unnest($3::text[], $4::bigint[]) AS want (handler, most)
    CROSS JOIN LATERAL (
        SELECT r.number, r.due_at, r.ctid AS place
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
        started = CASE
            -- Asked first: to look for each of many among as many takes its time.
            WHEN $6 >= $5 THEN true
            ELSE d.number = ANY (ARRAY(SELECT number FROM due ORDER BY due_at, number LIMIT $6))
        END,
        attempts = d.attempts + CASE
            WHEN $6 >= $5 THEN 1
            ELSE (d.number = ANY (ARRAY(SELECT number FROM due ORDER BY due_at, number LIMIT $6)))::integer
        END
    WHERE d.ctid = ANY (ARRAY(SELECT place FROM due))
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
