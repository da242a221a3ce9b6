-- One that may run keeps the others of its lane back wherever it stands, one that is stuck
-- those behind it. Those that wait keep nobody back: they wait for one of these.
UPDATE oncebox_delivery SET due_at = ?2, state = CASE
    WHEN EXISTS (
        SELECT 1 FROM oncebox_delivery AS other
        WHERE other.scope = oncebox_delivery.scope AND other.handler = oncebox_delivery.handler
            AND other.tenant = oncebox_delivery.tenant AND other.lane = oncebox_delivery.lane
            AND other.state NOT IN ('done', 'discarded') AND other.state IN ('ready', 'leased')
            AND other.number <> oncebox_delivery.number)
    OR EXISTS (
        SELECT 1 FROM oncebox_delivery AS other
        WHERE other.scope = oncebox_delivery.scope AND other.handler = oncebox_delivery.handler
            AND other.tenant = oncebox_delivery.tenant AND other.lane = oncebox_delivery.lane
            AND other.state NOT IN ('done', 'discarded') AND other.state IN ('parked', 'dead')
            AND other.number < ?3)
    THEN 'behind' ELSE 'ready' END
WHERE number = ?1;
