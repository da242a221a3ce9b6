-- Its place in the lane is decided next. A copy that was stored in the moment it was finished may have its key: then
-- there is nothing to replay, for the key's next run is under way.
WITH done AS (
    DELETE FROM oncebox.finished
    WHERE number = $1 AND NOT EXISTS (
        SELECT FROM oncebox.delivery AS d
        WHERE d.scope = finished.scope AND d.handler = finished.handler AND d.tenant = finished.tenant
            AND d.key_source = finished.key_source AND d.key_id = finished.key_id
    )
    RETURNING *
)
INSERT INTO oncebox.delivery (
    number, message, scope, handler, tenant, key_source, key_id, digest, lane, fence, generation, history, state, due_at
) OVERRIDING SYSTEM VALUE SELECT
    number, message, scope, handler, tenant, key_source, key_id, digest, lane, fence, generation + 1, history, 'parked',
    ended_at
FROM done
