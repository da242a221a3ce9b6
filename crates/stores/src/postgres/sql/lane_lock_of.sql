-- As lane_lock, for the lanes of these deliveries.
SELECT pg_advisory_xact_lock(lane.key)
FROM (
    SELECT DISTINCT hashtextextended(
        concat_ws(E'\n', 'oncebox.delivery'::regclass::oid, d.scope, d.handler, d.tenant, d.lane), 0) AS key
    FROM (
        SELECT o.scope, o.handler, o.tenant, o.lane
        FROM oncebox.delivery AS o
        WHERE o.number = ANY ($1)
        UNION ALL
        SELECT f.scope, f.handler, f.tenant, f.lane
        FROM oncebox.finished AS f
        WHERE f.number = ANY ($1)
    ) AS d
    WHERE d.lane IS NOT NULL
    ORDER BY key
) AS lane
