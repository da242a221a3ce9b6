-- What is missing from a reader's own shards is a hole only if no other shard has it. Also the first of
-- its own rows above those that it has read ($5): this statement may see more than the one before it.
SELECT
    coalesce(array_agg(position) FILTER (WHERE NOT is_own), '{}'),
    min(position) FILTER (WHERE is_own)
FROM (
    SELECT position, shard = ANY ($3) AS is_own
    FROM oncebox.outbox
    WHERE position > $1 AND position <= $2 AND (shard <> ALL ($3) OR position > $5)
    ORDER BY position
    LIMIT $4
) AS ahead
