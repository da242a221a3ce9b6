-- As in `lane_place`, row by row: the first of a lane keeps back those that come after it.
UPDATE oncebox_delivery SET due_at = ?3, state = CASE
    WHEN EXISTS (
        SELECT 1 FROM oncebox_delivery AS other
        WHERE other.scope = oncebox_delivery.scope AND other.handler = oncebox_delivery.handler
            AND other.tenant = oncebox_delivery.tenant AND other.lane = oncebox_delivery.lane
            AND other.state NOT IN ('done', 'discarded') AND other.state IN ('ready', 'leased'))
    OR EXISTS (
        SELECT 1 FROM oncebox_delivery AS other
        WHERE other.scope = oncebox_delivery.scope AND other.handler = oncebox_delivery.handler
            AND other.tenant = oncebox_delivery.tenant AND other.lane = oncebox_delivery.lane
            AND other.state NOT IN ('done', 'discarded') AND other.state IN ('parked', 'dead')
            AND other.number < oncebox_delivery.number)
    THEN 'behind' ELSE 'ready' END
WHERE number IN (
    SELECT d.number FROM json_each(?2) AS known CROSS JOIN oncebox_delivery AS d
        ON d.scope = ?1 AND d.handler = known.value
    WHERE d.state NOT IN ('done', 'discarded') AND d.state = 'parked'
    LIMIT ?4);
