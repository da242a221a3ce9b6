-- Candidates. One that is being given to a handler is locked by that, and left alone.
SELECT m.number
FROM oncebox.message AS m
WHERE m.received_at < coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
    AND NOT EXISTS (SELECT FROM oncebox.delivery AS d WHERE d.message = m.number)
    AND NOT EXISTS (SELECT FROM oncebox.finished AS f WHERE f.message = m.number)
ORDER BY m.received_at
LIMIT $2
FOR UPDATE SKIP LOCKED
