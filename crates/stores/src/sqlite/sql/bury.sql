INSERT INTO oncebox_dead_letter (
    channel, handler, tenant, source, id, digest, code, reason, attempts, envelope, payload, died_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
    coalesce(?12, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)))
ON CONFLICT (channel, handler, tenant, source, id, digest) DO NOTHING;
