SELECT number, '', channel, handler, code, reason, attempts, died_at, died_at, 0, '[]', envelope, payload
FROM oncebox_dead_letter
WHERE (?1 IS NULL OR handler = ?1) AND (?2 IS NULL OR channel = ?2) AND (?3 IS NULL OR code = ?3)
ORDER BY died_at, number LIMIT ?4;
