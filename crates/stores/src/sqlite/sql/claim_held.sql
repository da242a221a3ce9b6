SELECT shard, fence, position, holes FROM oncebox_relay_cursor
WHERE sink = ?1 AND holder = ?2
ORDER BY shard;
