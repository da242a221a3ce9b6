-- The fence is checked by the DELETE itself, again after it has waited for whoever had the row locked.
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
)
SELECT EXISTS (SELECT FROM mine), EXISTS (SELECT FROM marked)
