-- A sink's first relay makes its cursors. They start below every row that exists, and no lower than what
-- retention may have removed, or a late sink would have to take the removed positions for holes one by one.
INSERT INTO oncebox.relay_cursor (sink, shard, position)
SELECT $1, shard, least(
    (SELECT min(position) - 1 FROM oncebox.outbox),
    coalesce((
        SELECT min(least(c.position, (SELECT min(hole) - 1 FROM unnest(c.holes) AS hole)))
        FROM oncebox.relay_cursor AS c
    ), 0)
)
FROM generate_series(0, $2 - 1) AS shard
WHERE (SELECT count(*) FROM oncebox.relay_cursor WHERE sink = $1) < $2
ORDER BY shard
ON CONFLICT DO NOTHING
