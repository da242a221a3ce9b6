-- A sink seen for the first time starts at the beginning of the log.
INSERT INTO oncebox_relay_cursor (sink, shard)
VALUES (?1, 0), (?1, 1), (?1, 2), (?1, 3), (?1, 4), (?1, 5), (?1, 6), (?1, 7)
ON CONFLICT (sink, shard) DO NOTHING;
