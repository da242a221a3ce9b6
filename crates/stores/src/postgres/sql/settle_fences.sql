SELECT c.shard
FROM oncebox.relay_cursor AS c
JOIN unnest($2::smallint[], $3::bigint[]) AS m (shard, fence) ON c.shard = m.shard AND c.fence = m.fence
WHERE c.sink = $1 AND c.holder IS NOT NULL
ORDER BY c.shard
FOR UPDATE OF c
