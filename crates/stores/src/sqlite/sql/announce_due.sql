-- Whether there is anything to write: most announcements find that there is not.
SELECT EXISTS (
    SELECT 1 FROM json_each(?2) AS known LEFT JOIN oncebox_handler AS h
        ON h.scope = ?1 AND h.handler = known.value
    WHERE h.seen_at IS NULL
        OR h.seen_at < coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) - ?4)
OR EXISTS (
    SELECT 1 FROM json_each(?2) AS known CROSS JOIN oncebox_delivery AS d
        ON d.scope = ?1 AND d.handler = known.value
    WHERE d.state NOT IN ('done', 'discarded') AND d.state = 'parked');
