-- Locked in order: whoever else touches several of these never waits in a circle.
WITH mine AS MATERIALIZED (
    SELECT d.number, d.fence
    FROM oncebox.delivery AS d
    JOIN unnest($1::bigint[], $2::bigint[]) AS t (number, fence) ON d.number = t.number AND d.fence = t.fence
    WHERE d.lease_until IS NOT NULL
    ORDER BY d.number
    FOR UPDATE OF d
), counted AS (
    UPDATE oncebox.delivery
    SET started = true, attempts = attempts + 1
    WHERE number = ANY (ARRAY(SELECT number FROM mine)) AND NOT started
)
SELECT number, fence FROM mine
