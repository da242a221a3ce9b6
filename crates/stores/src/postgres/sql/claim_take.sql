-- SKIP LOCKED: two relays that look at once each take different shards instead of waiting.
UPDATE oncebox.relay_cursor AS c
SET holder = $2, fence = c.fence + 1, lease_until = coalesce($5, clock_timestamp()) + $3 * interval '1 microsecond'
FROM (
    SELECT shard
    FROM oncebox.relay_cursor
    WHERE sink = $1 AND (holder IS NULL OR lease_until < coalesce($5, clock_timestamp()))
    ORDER BY shard
    LIMIT $4
    FOR UPDATE SKIP LOCKED
) AS free
WHERE c.sink = $1 AND c.shard = free.shard
