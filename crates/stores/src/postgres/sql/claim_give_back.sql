UPDATE oncebox.relay_cursor
SET holder = NULL, lease_until = NULL
WHERE sink = $1 AND holder = $2 AND shard IN (
    SELECT shard FROM oncebox.relay_cursor WHERE sink = $1 AND holder = $2 ORDER BY shard DESC LIMIT $3
)
