-- Insert first: a copy handled at the same time waits here for the outcome. The age gate is part of the
-- statement, so that it is judged by the same clock as retention.
INSERT INTO oncebox.marker (tenant, handler, source, id, digest, processed_at)
SELECT $1, $2, $3, $4, $5, coalesce($6, clock_timestamp())
WHERE $7 IS NULL OR $8::bigint IS NULL OR $7 >= coalesce($6, clock_timestamp()) - $8 * interval '1 microsecond'
ON CONFLICT DO NOTHING
