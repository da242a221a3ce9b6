WITH mine AS MATERIALIZED (
    SELECT d.number
    FROM oncebox.delivery AS d
    JOIN unnest($1::bigint[], $2::bigint[]) AS t (number, fence) ON d.number = t.number AND d.fence = t.fence
    WHERE d.state = 'leased'
    ORDER BY d.number
    FOR UPDATE OF d
)
UPDATE oncebox.delivery
SET state = 'ready', due_at = coalesce($3, clock_timestamp()), holder = NULL,
    attempts = attempts - started::integer, started = false
WHERE number = ANY (ARRAY(SELECT number FROM mine))
