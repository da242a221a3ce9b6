-- Nothing is added where the handler has, or had, a delivery or a marker under this key.
INSERT INTO oncebox_delivery (
    message, scope, handler, tenant, key_source, key_id, digest, lane, code, reason, due_at, state, ended_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
    CASE
        WHEN ?9 IS NOT NULL THEN 'dead'
        WHEN EXISTS (
            SELECT 1 FROM oncebox_delivery
            WHERE scope = ?2 AND handler = ?3 AND tenant = ?4 AND lane = ?8
                AND state NOT IN ('done', 'discarded')) THEN 'behind'
        ELSE 'ready'
    END,
    CASE WHEN ?9 IS NOT NULL THEN ?11 END
WHERE NOT EXISTS (
    SELECT 1 FROM oncebox_marker WHERE tenant = ?4 AND handler = ?12 AND source = ?5 AND id = ?6)
ON CONFLICT (scope, handler, tenant, key_source, key_id) DO NOTHING
RETURNING number;
