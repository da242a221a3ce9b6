SELECT
    number, '', channel, handler, code, reason, attempts, died_at, died_at, envelope::text, payload, '[]', 0::bigint
FROM oncebox.dead_letter
WHERE ($1::bigint IS NULL OR number = $1)
    AND ($2::text IS NULL OR handler = $2)
    AND ($3::text IS NULL OR channel = $3)
    AND ($4::text IS NULL OR code = $4)
ORDER BY died_at, number
LIMIT $5
