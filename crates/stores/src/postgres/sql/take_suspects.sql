-- As take, but only what a dead worker was running, and what has been in such hands before. The former was due
-- before what nobody has taken yet, so it is looked for in front only, not in all of a backlog; if that many are
-- under way, it is found when some of them are over.
WITH due AS MATERIALIZED (
    SELECT d.number, d.due_at FROM unnest($3::text[], $4::bigint[]) AS want (handler, most)
    CROSS JOIN LATERAL (
        SELECT both_kinds.* FROM (
            SELECT * FROM (
                SELECT r.number, r.due_at
                FROM oncebox.delivery AS r
                WHERE r.scope = $1 AND r.handler = want.handler AND r.state = 'ready' AND r.deaths > 0
                    AND r.due_at <= coalesce($8, statement_timestamp())
                    AND (r.lease_until IS NULL OR r.lease_until <= coalesce($8, statement_timestamp()))
                ORDER BY r.due_at, r.number LIMIT want.most
                FOR UPDATE SKIP LOCKED
            ) AS seen_before
            UNION ALL
            SELECT * FROM (
                SELECT l.number, l.due_at
                FROM oncebox.delivery AS l
                WHERE l.number = ANY (ARRAY(
                    SELECT front.number
                    FROM (
                        SELECT f.number, f.due_at, f.lease_until, f.started, f.deaths
                        FROM oncebox.delivery AS f
                        WHERE f.scope = $1 AND f.handler = want.handler AND f.state = 'ready'
                            AND f.due_at <= coalesce($8, statement_timestamp())
                        ORDER BY f.due_at, f.number
                        LIMIT 1000
                    ) AS front
                    WHERE front.started AND front.deaths = 0 AND front.lease_until <= coalesce($8, statement_timestamp())
                    ORDER BY front.due_at, front.number
                    LIMIT want.most
                ))
                    AND l.started AND l.deaths = 0 AND l.lease_until <= coalesce($8, statement_timestamp())
                FOR UPDATE SKIP LOCKED
            ) AS died_just_now
        ) AS both_kinds
        ORDER BY both_kinds.due_at, both_kinds.number LIMIT want.most
    ) AS d
    ORDER BY d.due_at, d.number LIMIT $5
), taken AS (
    UPDATE oncebox.delivery AS d
    SET holder = $2, fence = d.fence + 1,
        lease_until = coalesce($8, clock_timestamp()) + $7 * interval '1 microsecond',
        deaths = d.deaths + (d.lease_until IS NOT NULL AND d.started)::integer,
        started = d.number = ANY (ARRAY(SELECT number FROM due ORDER BY due_at, number LIMIT $6)),
        attempts = d.attempts
            + (d.number = ANY (ARRAY(SELECT number FROM due ORDER BY due_at, number LIMIT $6)))::integer
    WHERE d.number = ANY (ARRAY(SELECT number FROM due))
    RETURNING d.*
)
SELECT
    t.number, t.fence, t.handler, m.channel, t.key_source, t.key_id, t.lane,
    t.attempts + (NOT t.started)::integer, t.deaths, t.generation, t.started, m.received_at, m.attributes, m.payload
FROM taken AS t
JOIN oncebox.message AS m ON m.number = t.message
JOIN due ON due.number = t.number
ORDER BY due.due_at, t.number
