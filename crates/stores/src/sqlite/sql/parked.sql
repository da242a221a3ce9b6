SELECT p.sink, p.position, coalesce(o.id, ''), coalesce(o.type, ''), p.state,
    p.attempts, p.reason, p.parked_at
FROM oncebox_parked AS p LEFT JOIN oncebox_outbox AS o ON o.position = p.position
ORDER BY p.parked_at, p.position, p.sink
LIMIT ?1;
