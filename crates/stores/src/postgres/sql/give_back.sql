WITH mine AS MATERIALIZED (
    SELECT d.number
    FROM oncebox.delivery AS d
    JOIN unnest($1::bigint[], $2::bigint[]) AS t (number, fence) ON d.number = t.number AND d.fence = t.fence
    WHERE d.lease_until IS NOT NULL
    ORDER BY d.number
    FOR UPDATE OF d
)
UPDATE oncebox.delivery
SET due_at = coalesce($3, clock_timestamp()), lease_until = NULL, holder = NULL,
    attempts = attempts - started::integer, started = false
WHERE number = ANY (ARRAY(SELECT number FROM mine))
