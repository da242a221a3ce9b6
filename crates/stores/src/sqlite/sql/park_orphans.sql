-- Asked once more, under the write lock: somebody may have announced it since.
UPDATE oncebox_delivery SET state = 'parked'
WHERE number IN (
    SELECT number FROM oncebox_delivery
    WHERE scope = ?1 AND handler = ?2 AND state NOT IN ('done', 'discarded') AND state = 'ready'
        AND due_at < ?3 - ?4
    ORDER BY due_at, number LIMIT ?5)
AND NOT EXISTS (
    SELECT 1 FROM oncebox_handler AS h
    WHERE h.scope = ?1 AND h.handler = ?2
        AND h.seen_at >= ?3 - ?4)
RETURNING scope, handler, tenant, lane;
