SELECT shard FROM oncebox.relay_cursor WHERE sink = $1 ORDER BY shard FOR UPDATE
