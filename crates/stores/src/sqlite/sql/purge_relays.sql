DELETE FROM oncebox_relay_member WHERE (sink, holder) IN (
    SELECT sink, holder FROM oncebox_relay_member
    WHERE seen_until < coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) - ?1
    LIMIT ?2);
