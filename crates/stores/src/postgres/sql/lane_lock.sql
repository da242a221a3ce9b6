-- Two deposits of one lane, or a deposit and a finish, could not see each other. In order, so that two batches
-- never wait for one another; a statement of its own, so that the next one sees what was committed before.
SELECT pg_advisory_xact_lock(lane.key)
FROM (
    SELECT DISTINCT hashtextextended(
        concat_ws(E'\n', 'oncebox.delivery'::regclass::oid, l.scope, l.handler, l.tenant, l.lane), 0) AS key
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS l (scope, handler, tenant, lane)
    ORDER BY key
) AS lane
