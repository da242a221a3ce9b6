-- Counted before the body runs, so that a handler that kills the process is found.
INSERT INTO oncebox_entry (tenant, handler, source, id, entries, entered_at)
VALUES (?1, ?2, ?3, ?4, 1, coalesce(?5, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)))
ON CONFLICT (tenant, handler, source, id)
DO UPDATE SET entries = entries + 1, entered_at = excluded.entered_at
RETURNING entries;
