SELECT DISTINCT tenant, ordering_key FROM oncebox_parked
WHERE sink = ?1 AND ordering_key IS NOT NULL AND (?2 >> shard) & 1 AND NOT (?3 AND state = 'dead')
LIMIT ?4;
