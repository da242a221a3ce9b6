-- A share that no deposit made. Its place in the lane is decided next.
INSERT INTO oncebox.delivery (
    message, scope, handler, tenant, key_source, key_id, digest, lane, state, due_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'parked', coalesce($9, clock_timestamp()))
ON CONFLICT DO NOTHING
RETURNING number
