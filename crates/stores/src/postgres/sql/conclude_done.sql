-- It took effect elsewhere, perhaps as a delivery of its own: of two with one key, one is kept.
WITH done AS (
    DELETE FROM oncebox.delivery
    WHERE number = $1
    RETURNING *
)
INSERT INTO oncebox.finished (
    number, message, scope, handler, tenant, key_source, key_id, digest, lane, fence, attempts, generation, history,
    ended_at
) SELECT
    number, message, scope, handler, tenant, key_source, key_id, digest, lane, fence, attempts, generation, history, $2
FROM done
ON CONFLICT (key_id, key_source, handler, tenant, scope) DO NOTHING
