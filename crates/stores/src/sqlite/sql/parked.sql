-- As bytes: a row made by hand is parked just because its text cannot be read.
SELECT p.sink, p.position, CAST(coalesce(o.id, '') AS BLOB), CAST(coalesce(o.type, '') AS BLOB), p.state,
    p.attempts, p.reason, p.parked_at
FROM oncebox_parked AS p LEFT JOIN oncebox_outbox AS o ON o.position = p.position
WHERE (?2 IS NULL OR p.state = ?2) AND (?3 IS NULL OR p.sink = ?3)
ORDER BY p.parked_at, p.position, p.sink
LIMIT ?1;
