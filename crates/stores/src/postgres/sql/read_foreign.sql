-- What is missing from a reader's own shards is a hole only if no other shard has it.
SELECT position
FROM oncebox.outbox
WHERE position > $1 AND position <= $2 AND shard <> ALL ($3)
ORDER BY position
LIMIT $4
