-- The fence is checked by the UPDATE itself, again after it has waited for whoever had the row locked.
WITH mine AS (
    UPDATE oncebox.delivery
    SET state = 'done', ended_at = coalesce($3, clock_timestamp()), code = NULL, reason = NULL, started = false,
        holder = NULL
    WHERE number = $1 AND fence = $2 AND state = 'leased'
    RETURNING number
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
    WHERE number = $10 AND fence = $11 AND state = 'leased' AND NOT started
)
SELECT EXISTS (SELECT FROM mine), EXISTS (SELECT FROM marked)
