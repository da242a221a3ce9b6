-- Handlers with something open that nobody has announced; from each to the next, without looking at its rows.
WITH RECURSIVE head (number) AS (
    SELECT number FROM (
        SELECT number FROM oncebox_delivery WHERE state NOT IN ('done', 'discarded')
        ORDER BY scope, handler LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT later.number FROM oncebox_delivery AS later
            WHERE later.state NOT IN ('done', 'discarded') AND later.scope = d.scope AND later.handler > d.handler
            ORDER BY later.handler LIMIT 1),
        (SELECT later.number FROM oncebox_delivery AS later
            WHERE later.state NOT IN ('done', 'discarded') AND later.scope > d.scope
            ORDER BY later.scope, later.handler LIMIT 1))
    FROM head CROSS JOIN oncebox_delivery AS d ON d.number = head.number)
SELECT d.scope, d.handler FROM head CROSS JOIN oncebox_delivery AS d ON d.number = head.number
WHERE NOT EXISTS (
    SELECT 1 FROM oncebox_handler AS h
    WHERE h.scope = d.scope AND h.handler = d.handler
        AND h.seen_at >= coalesce(?1, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) - ?2);
