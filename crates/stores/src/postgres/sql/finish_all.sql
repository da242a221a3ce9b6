-- As finish, for several that have no lane. What comes back is how many were still ours and how many markers are
-- new; if not all of them are, beside each that is.
WITH mine AS (
    DELETE FROM oncebox.delivery AS d
    USING unnest($1::bigint[], $2::bigint[]) AS t (number, fence)
    WHERE d.number = t.number AND d.fence = t.fence AND d.lease_until IS NOT NULL
    RETURNING d.*
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
    SELECT m.tenant, m.handler, m.source, m.id, m.digest, coalesce($3, clock_timestamp()), m.result
    FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[], $9::bytea[])
        AS m (tenant, handler, source, id, digest, result)
    WHERE m.handler IS NOT NULL
    ORDER BY m.tenant, m.handler, m.source, m.id
    ON CONFLICT DO NOTHING
    RETURNING tenant, handler, source, id
)
SELECT total.mine, total.marked, marked.tenant, marked.handler, marked.source, marked.id
FROM (SELECT (SELECT count(*) FROM mine) AS mine, (SELECT count(*) FROM marked) AS marked) AS total
LEFT JOIN marked ON total.marked < $10
