-- A row that somebody holds locked is being decided, so there is nothing to renew, and to wait for it would hold
-- up all the others. What tells good tickets from bad ones is what was committed before.
WITH mine AS MATERIALIZED (
    SELECT d.number
    FROM oncebox.delivery AS d
    JOIN unnest($1::bigint[], $2::bigint[]) AS t (number, fence) ON d.number = t.number AND d.fence = t.fence
    WHERE d.lease_until IS NOT NULL
    FOR UPDATE OF d SKIP LOCKED
), renewed AS (
    UPDATE oncebox.delivery
    SET lease_until = coalesce($4, clock_timestamp()) + $3 * interval '1 microsecond'
    WHERE number = ANY (ARRAY(SELECT number FROM mine))
)
SELECT d.number, d.fence
FROM oncebox.delivery AS d
JOIN unnest($1::bigint[], $2::bigint[]) AS t (number, fence) ON d.number = t.number AND d.fence = t.fence
WHERE d.lease_until IS NOT NULL
