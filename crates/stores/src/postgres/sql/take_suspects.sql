-- As take, but only what a dead worker was running, and what has been in such hands before.
WITH due AS MATERIALIZED (
    SELECT d.number, d.due_at
    FROM unnest($3::text[], $4::bigint[]) AS want (handler, most)
    CROSS JOIN LATERAL (
        SELECT both_states.number, both_states.due_at
        FROM (
            SELECT * FROM (
                SELECT r.number, r.due_at
                FROM oncebox.delivery AS r
                WHERE r.scope = $1 AND r.handler = want.handler
                    AND r.state = 'ready' AND r.deaths > 0
                    AND r.due_at <= coalesce($8, statement_timestamp())
                ORDER BY r.due_at, r.number
                LIMIT want.most
                FOR UPDATE SKIP LOCKED
            ) AS ready
            UNION ALL
            SELECT * FROM (
                SELECT l.number, l.due_at
                FROM oncebox.delivery AS l
                WHERE l.scope = $1 AND l.handler = want.handler
                    AND l.state = 'leased' AND (l.started OR l.deaths > 0)
                    AND l.due_at <= coalesce($8, statement_timestamp())
                ORDER BY l.due_at, l.number
                LIMIT want.most
                FOR UPDATE SKIP LOCKED
            ) AS expired
        ) AS both_states
        ORDER BY both_states.due_at, both_states.number
        LIMIT want.most
    ) AS d
    ORDER BY d.due_at, d.number
    LIMIT $5
), taken AS (
    UPDATE oncebox.delivery AS d
    SET state = 'leased', holder = $2, fence = d.fence + 1,
        due_at = coalesce($8, clock_timestamp()) + $7 * interval '1 microsecond',
        deaths = d.deaths + (d.state = 'leased' AND d.started)::integer,
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
