UPDATE oncebox_relay_cursor SET holder = ?2, fence = fence + 1, lease_until = ?3
WHERE sink = ?1 AND shard IN (
    SELECT shard FROM oncebox_relay_cursor
    WHERE sink = ?1 AND (holder IS NULL OR lease_until < ?4)
    ORDER BY shard LIMIT ?5);
