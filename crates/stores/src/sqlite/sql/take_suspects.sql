-- As for others, but of those whose last run started and ended with its lease.
SELECT d.number, d.handler FROM json_each(?2) AS want CROSS JOIN oncebox_delivery AS d
WHERE d.number IN (
    SELECT number FROM (
        SELECT number FROM oncebox_delivery
        WHERE scope = ?1 AND handler = want.value AND state = 'ready' AND due_at <= ?3 AND deaths > 0
        ORDER BY due_at, number LIMIT ?4)
    UNION ALL
    SELECT number FROM (
        SELECT number FROM oncebox_delivery
        WHERE scope = ?1 AND handler = want.value AND state NOT IN ('done', 'discarded')
            AND state = 'leased' AND due_at <= ?3 AND (deaths > 0 OR started)
        ORDER BY coalesce(was_due, due_at), number LIMIT ?4))
ORDER BY CASE WHEN d.state = 'leased' THEN coalesce(d.was_due, d.due_at) ELSE d.due_at END, d.number;
