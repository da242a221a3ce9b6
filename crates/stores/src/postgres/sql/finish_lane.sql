-- As finish, and then as lane_free, for the one lane. The snapshot still shows the finished one,
-- so it is left out by its number.
WITH mine AS (
    DELETE FROM oncebox.delivery
    WHERE number = $1 AND fence = $2 AND lease_until IS NOT NULL
    RETURNING *
), kept AS (
    INSERT INTO oncebox.finished (
        number, message, scope, handler, tenant, key_source, key_id, digest, lane, fence, attempts, generation,
        history, ended_at
    ) SELECT
        number, message, scope, handler, tenant, key_source, key_id, digest, lane, fence, attempts, generation,
        history, coalesce($3, clock_timestamp())
    FROM mine
    ON CONFLICT (key_id, key_source, handler, tenant, scope) DO NOTHING
), marked AS (
    INSERT INTO oncebox.marker (tenant, handler, source, id, digest, processed_at, result)
    SELECT $4, $5, $6, $7, $8, coalesce($3, clock_timestamp()), $9
    FROM mine
    WHERE $5::text IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING handler
), next AS (
    UPDATE oncebox.delivery
    SET started = true, attempts = attempts + 1
    WHERE number = $10 AND fence = $11 AND lease_until IS NOT NULL AND NOT started
), freed AS (
    UPDATE oncebox.delivery
    SET state = 'ready', due_at = coalesce($3, clock_timestamp())
    WHERE number = (
        SELECT head.number
        FROM mine
        CROSS JOIN LATERAL (
            SELECT w.number
            FROM oncebox.delivery AS w
            WHERE w.scope = mine.scope AND w.handler = mine.handler AND w.tenant = mine.tenant
                AND w.lane = mine.lane AND w.state = 'behind'
            ORDER BY w.number
            LIMIT 1
        ) AS head
        WHERE NOT EXISTS (
            SELECT FROM oncebox.delivery AS runs
            WHERE runs.scope = mine.scope AND runs.handler = mine.handler AND runs.tenant = mine.tenant
                AND runs.lane = mine.lane AND runs.state = 'ready' AND runs.number <> $1
        ) AND NOT EXISTS (
            SELECT FROM oncebox.delivery AS stuck
            WHERE stuck.scope = mine.scope AND stuck.handler = mine.handler AND stuck.tenant = mine.tenant
                AND stuck.lane = mine.lane AND stuck.state IN ('parked', 'dead') AND stuck.number < head.number
        )
    )
)
SELECT EXISTS (SELECT FROM mine), EXISTS (SELECT FROM marked)
