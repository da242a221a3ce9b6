-- All shards or none: the fences are checked and locked before any of them moves.
WITH mine AS (
    SELECT c.shard
    FROM oncebox.relay_cursor AS c
    JOIN unnest($2::smallint[], $3::bigint[]) AS m (shard, fence) ON c.shard = m.shard AND c.fence = m.fence
    WHERE c.sink = $1 AND c.holder IS NOT NULL
    ORDER BY c.shard
    FOR UPDATE OF c
)
UPDATE oncebox.relay_cursor AS c
SET position = $4, holes = $5, moved_at = coalesce($6, clock_timestamp())
FROM mine
WHERE c.sink = $1 AND c.shard = mine.shard AND (SELECT count(*) FROM mine) = cardinality($2::smallint[])
