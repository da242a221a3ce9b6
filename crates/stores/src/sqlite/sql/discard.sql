DELETE FROM oncebox_parked
WHERE sink = ?1 AND position = ?2 AND state = 'dead'
RETURNING tenant, ordering_key;
