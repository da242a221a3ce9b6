-- A share that no deposit made. Its place in the lane is decided next.
INSERT INTO oncebox.delivery (
    message, scope, handler, tenant, key_source, key_id, digest, lane, state, due_at
) SELECT $1, $2, $3, $4, $5, $6, $7, $8, 'parked', coalesce($9, clock_timestamp())
WHERE NOT EXISTS (
    SELECT FROM oncebox.finished
    WHERE scope = $2 AND handler = $3 AND tenant = $4 AND key_source = $5 AND key_id = $6
)
ON CONFLICT DO NOTHING
RETURNING number
