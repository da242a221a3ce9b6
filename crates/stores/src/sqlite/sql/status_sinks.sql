-- Cursors of one relay repeat its holes, so a hole counts only in its own shard.
SELECT s.sink,
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox_outbox AS o CROSS JOIN oncebox_relay_cursor AS c
            ON c.sink = s.sink AND c.shard = o.shard
        WHERE o.position > s.lowest AND o.position > c.position
        LIMIT ?1)),
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox_relay_cursor AS c CROSS JOIN json_each(c.holes) AS hole
            CROSS JOIN oncebox_outbox AS o ON o.position = hole.value AND o.shard = c.shard
        WHERE c.sink = s.sink
        LIMIT ?1)),
    (SELECT o.created_at FROM oncebox_outbox AS o CROSS JOIN oncebox_relay_cursor AS c
        ON c.sink = s.sink AND c.shard = o.shard
        WHERE o.position > s.lowest AND o.position > c.position
        ORDER BY o.position LIMIT 1),
    (SELECT min(o.created_at) FROM oncebox_relay_cursor AS c CROSS JOIN json_each(c.holes) AS hole
        CROSS JOIN oncebox_outbox AS o ON o.position = hole.value AND o.shard = c.shard
        WHERE c.sink = s.sink),
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox_parked WHERE sink = s.sink AND state = 'waiting' LIMIT ?1)),
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox_parked WHERE sink = s.sink AND state = 'behind' LIMIT ?1)),
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox_parked WHERE sink = s.sink AND state = 'dead' LIMIT ?1)),
    (SELECT count(*) FROM oncebox_relay_member WHERE sink = s.sink AND seen_until > ?2),
    s.unowned, s.moved_at,
    (SELECT min(outage) FROM oncebox_relay_member WHERE sink = s.sink AND seen_until > ?2)
FROM (
    SELECT sink, min(position) AS lowest, max(moved_at) AS moved_at,
        sum(holder IS NULL OR lease_until < ?2) AS unowned
    FROM oncebox_relay_cursor GROUP BY sink) AS s
ORDER BY s.sink;
