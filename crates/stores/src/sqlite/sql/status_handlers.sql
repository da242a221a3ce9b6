-- From each handler that has something open to the next, without looking at its rows. The oldest
-- is looked for among the first of each state, which is all of them unless there is a backlog.
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
    FROM head CROSS JOIN oncebox_delivery AS d ON d.number = head.number),
stage (state) AS (VALUES ('ready'), ('leased'), ('behind'), ('parked'), ('dead'))
SELECT h.scope, h.handler, stage.state,
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox_delivery AS d
        WHERE d.scope = h.scope AND d.handler = h.handler AND d.state NOT IN ('done', 'discarded')
            AND d.state = stage.state
        LIMIT ?1)),
    (SELECT min(m.received_at) FROM oncebox_message AS m WHERE m.number IN (
        SELECT message FROM (
            SELECT d.message FROM oncebox_delivery AS d
            WHERE d.scope = h.scope AND d.handler = h.handler AND d.state NOT IN ('done', 'discarded')
                AND d.state = stage.state
            ORDER BY d.due_at, d.number LIMIT ?2)))
FROM head CROSS JOIN oncebox_delivery AS h ON h.number = head.number CROSS JOIN stage
ORDER BY h.scope, h.handler;
