-- Pending rows are looked for above the sink's lowest cursor only, so a settled log costs nothing.
WITH sink AS (
    SELECT sink, min(position) AS floor, max(moved_at) AS moved_at,
        count(*) FILTER (WHERE holder IS NULL OR lease_until < clock_timestamp()) AS unowned
    FROM oncebox.relay_cursor
    GROUP BY sink
)
SELECT
    sink.sink, pending.count, pending.oldest, clock_timestamp(),
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox.parked AS p WHERE p.sink = sink.sink AND p.state = 'waiting' LIMIT $1) AS t),
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox.parked AS p WHERE p.sink = sink.sink AND p.state = 'behind' LIMIT $1) AS t),
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox.parked AS p WHERE p.sink = sink.sink AND p.state = 'dead' LIMIT $1) AS t),
    (SELECT count(*) FROM oncebox.relay_member AS m
        WHERE m.sink = sink.sink AND m.seen_until > clock_timestamp()),
    sink.unowned, sink.moved_at,
    (SELECT min(m.outage) FROM oncebox.relay_member AS m
        WHERE m.sink = sink.sink AND m.seen_until > clock_timestamp())
FROM sink
CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(t.created_at) AS oldest
    FROM (
        SELECT o.created_at
        FROM oncebox.outbox AS o
        JOIN oncebox.relay_cursor AS c ON c.sink = sink.sink AND c.shard = o.shard
        WHERE o.position > sink.floor AND o.position > c.position
        UNION ALL
        SELECT o.created_at
        FROM oncebox.relay_cursor AS c
        CROSS JOIN LATERAL unnest(c.holes) AS hole
        JOIN oncebox.outbox AS o ON o.position = hole AND o.shard = c.shard
        WHERE c.sink = sink.sink
        LIMIT $1
    ) AS t
) AS pending
ORDER BY sink.sink
