SELECT p.sink, p.position, o.id, o.type, p.state, p.attempts, p.reason, p.parked_at
FROM oncebox.parked AS p
JOIN oncebox.outbox AS o ON o.position = p.position
WHERE ($2::text IS NULL OR p.state = $2) AND ($3::text IS NULL OR p.sink = $3)
ORDER BY p.parked_at, p.position
LIMIT $1
