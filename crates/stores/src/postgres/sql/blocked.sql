SELECT DISTINCT tenant, ordering_key
FROM oncebox.parked
WHERE sink = $1 AND shard = ANY ($2) AND ordering_key IS NOT NULL AND (NOT $3 OR state <> 'dead')
LIMIT $4
