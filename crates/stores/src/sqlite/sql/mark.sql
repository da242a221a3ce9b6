-- No row for a message older than the window: its marker may have been purged.
INSERT INTO oncebox_marker (tenant, handler, source, id, digest, processed_at)
SELECT ?1, ?2, ?3, ?4, ?5, coalesce(?8, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
WHERE ?6 IS NULL OR ?7 IS NULL
    OR ?6 >= coalesce(?8, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) - ?7
ON CONFLICT (tenant, handler, source, id) DO NOTHING;
