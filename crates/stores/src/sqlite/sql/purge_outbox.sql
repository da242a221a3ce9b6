-- Walks from the start of the log and looks at no more rows than it may delete,
-- whatever the size of the log. Without any cursor nothing counts as settled.
DELETE FROM oncebox_outbox WHERE position IN (
    SELECT position FROM (
        SELECT o.position, o.created_at FROM oncebox_outbox AS o
        WHERE o.position <= (
                SELECT min(min(c.position,
                    coalesce((SELECT min(value) - 1 FROM json_each(c.holes)), c.position)))
                FROM oncebox_relay_cursor AS c)
            AND NOT EXISTS (SELECT 1 FROM oncebox_parked AS p WHERE p.position = o.position)
        ORDER BY o.position
        LIMIT ?2)
    WHERE created_at < coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) - ?1);
