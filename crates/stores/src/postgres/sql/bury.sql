INSERT INTO oncebox.dead_letter (
    channel, handler, tenant, source, id, digest, code, reason, attempts, envelope, payload, died_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::jsonb, $11, coalesce($12, clock_timestamp()))
ON CONFLICT DO NOTHING
