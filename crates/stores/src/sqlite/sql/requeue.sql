UPDATE oncebox_parked
SET state = 'waiting', attempts = 0, next_at = coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
WHERE sink = ?1 AND position = ?2 AND state = 'dead';
