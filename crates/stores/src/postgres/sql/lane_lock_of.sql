-- As lane_lock, for the lanes of these deliveries.
SELECT pg_advisory_xact_lock(lane.key)
FROM (
    SELECT DISTINCT hashtextextended(
        concat_ws(E'\n', 'oncebox.delivery'::regclass::oid, d.scope, d.handler, d.tenant, d.lane), 0) AS key
    FROM oncebox.delivery AS d
    WHERE d.number = ANY ($1) AND d.lane IS NOT NULL
    ORDER BY key
) AS lane
