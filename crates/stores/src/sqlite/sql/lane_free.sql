-- The first that waits becomes ready, unless one of the lane may run, or one in front of it is stuck.
UPDATE oncebox_delivery SET state = 'ready', due_at = ?5
WHERE number = (
    SELECT number FROM oncebox_delivery
    WHERE scope = ?1 AND handler = ?2 AND tenant = ?3 AND lane = ?4
        AND state NOT IN ('done', 'discarded') AND state = 'behind'
    ORDER BY number LIMIT 1)
AND NOT EXISTS (
    SELECT 1 FROM oncebox_delivery AS other
    WHERE other.scope = ?1 AND other.handler = ?2 AND other.tenant = ?3 AND other.lane = ?4
        AND other.state NOT IN ('done', 'discarded') AND other.state IN ('ready', 'leased'))
AND NOT EXISTS (
    SELECT 1 FROM oncebox_delivery AS other
    WHERE other.scope = ?1 AND other.handler = ?2 AND other.tenant = ?3 AND other.lane = ?4
        AND other.state NOT IN ('done', 'discarded') AND other.state IN ('parked', 'dead')
        AND other.number < oncebox_delivery.number);
