DELETE FROM oncebox_entry WHERE (tenant, handler, source, id) IN (
    SELECT tenant, handler, source, id FROM oncebox_entry
    WHERE entered_at < coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) - ?1
    LIMIT ?2);
