DELETE FROM oncebox_marker WHERE (tenant, handler, source, id) IN (
    SELECT tenant, handler, source, id FROM oncebox_marker
    WHERE handler = ?4 AND processed_at < coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) - ?1
    ORDER BY processed_at
    LIMIT ?2);
