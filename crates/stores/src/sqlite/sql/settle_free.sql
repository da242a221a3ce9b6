-- ?2 is [[tenant, key], ...]. Only the first parked row of a lane can be freed; a
-- dead one stands first for ever unless ?4 lets the lane pass it.
UPDATE oncebox_parked SET state = 'waiting', next_at = ?3
WHERE sink = ?1 AND state = 'behind' AND position IN (
    SELECT (SELECT first.position FROM oncebox_parked AS first INDEXED BY oncebox_parked_lane
        WHERE first.sink = ?1
            AND first.tenant = json_extract(lane.value, '$[0]')
            AND first.ordering_key = json_extract(lane.value, '$[1]')
            AND NOT (?4 AND first.state = 'dead')
        ORDER BY first.position LIMIT 1)
    FROM json_each(?2) AS lane);
