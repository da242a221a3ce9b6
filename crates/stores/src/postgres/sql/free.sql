-- The lowest row of each lane may be tried now, unless it is a dead letter that goes on blocking.
UPDATE oncebox.parked AS p
SET state = 'waiting', next_at = coalesce($5, clock_timestamp())
FROM unnest($2::text[], $3::text[]) AS lane (tenant, ordering_key)
CROSS JOIN LATERAL (
    SELECT h.position
    FROM oncebox.parked AS h
    WHERE h.sink = $1 AND h.tenant = lane.tenant AND h.ordering_key = lane.ordering_key
        AND (NOT $4 OR h.state <> 'dead')
    ORDER BY h.position
    LIMIT 1
) AS head
WHERE p.sink = $1 AND p.position = head.position AND p.state = 'behind'
