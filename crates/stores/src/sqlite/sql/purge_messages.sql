DELETE FROM oncebox_message WHERE number IN (
    SELECT m.number FROM oncebox_message AS m
    WHERE m.received_at < coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) - ?1
        AND NOT EXISTS (SELECT 1 FROM oncebox_delivery AS d WHERE d.message = m.number)
    ORDER BY m.received_at, m.number LIMIT ?2);
