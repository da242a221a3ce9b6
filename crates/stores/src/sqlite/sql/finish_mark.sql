INSERT INTO oncebox_marker (tenant, handler, source, id, digest, processed_at, result)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (tenant, handler, source, id) DO NOTHING;
