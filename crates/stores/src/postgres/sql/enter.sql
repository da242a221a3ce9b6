-- Counted before the body runs, so that a handler that kills the process is found.
INSERT INTO oncebox.entry AS e (tenant, handler, source, id, entries, entered_at)
VALUES ($1, $2, $3, $4, 1, coalesce($5, clock_timestamp()))
ON CONFLICT (tenant, handler, source, id)
DO UPDATE SET entries = e.entries + 1, entered_at = excluded.entered_at
RETURNING entries
