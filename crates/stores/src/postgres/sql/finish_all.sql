-- As finish, for several that have no lane. What comes back is how many were still ours, beside each new marker.
WITH mine AS (
    UPDATE oncebox.delivery AS d
    SET state = 'done', ended_at = coalesce($3, clock_timestamp()), code = NULL, reason = NULL, started = false,
        holder = NULL
    FROM unnest($1::bigint[], $2::bigint[]) AS t (number, fence)
    WHERE d.number = t.number AND d.fence = t.fence AND d.state = 'leased'
    RETURNING d.number
), marked AS (
    INSERT INTO oncebox.marker (tenant, handler, source, id, digest, processed_at, result)
    SELECT m.tenant, m.handler, m.source, m.id, m.digest, coalesce($3, clock_timestamp()), m.result
    FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[], $9::bytea[])
        AS m (tenant, handler, source, id, digest, result)
    WHERE m.handler IS NOT NULL
    ORDER BY m.tenant, m.handler, m.source, m.id
    ON CONFLICT DO NOTHING
    RETURNING tenant, handler, source, id
)
SELECT (SELECT count(*) FROM mine), marked.tenant, marked.handler, marked.source, marked.id
FROM (VALUES (1)) AS always (n)
LEFT JOIN marked ON true
