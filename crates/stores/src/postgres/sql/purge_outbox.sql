-- Walks the key from its low end and looks at no more than the limit, however long the log is. Nothing at or
-- above a cursor's first hole is settled for its sink; without any cursor nothing is.
DELETE FROM oncebox.outbox
WHERE created_at < coalesce($3, clock_timestamp()) - $1 * interval '1 microsecond' AND position = ANY (ARRAY(
    SELECT o.position
    FROM oncebox.outbox AS o
    WHERE o.position <= (
        SELECT min(least(c.position, (SELECT min(hole) - 1 FROM unnest(c.holes) AS hole)))
        FROM oncebox.relay_cursor AS c
    ) AND NOT EXISTS (SELECT 1 FROM oncebox.parked AS p WHERE p.position = o.position)
    ORDER BY o.position
    LIMIT $2
))
