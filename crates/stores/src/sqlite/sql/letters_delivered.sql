SELECT d.number, d.scope, m.channel, d.handler, coalesce(d.code, ''), coalesce(d.reason, ''), d.attempts,
    m.received_at, d.ended_at,
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox_delivery AS b
        WHERE b.scope = d.scope AND b.handler = d.handler AND b.tenant = d.tenant AND b.lane = d.lane
            AND b.state NOT IN ('done', 'discarded') AND b.state = 'behind' AND b.number > d.number
        LIMIT ?5)),
    '[]', m.attributes, m.payload
FROM oncebox_delivery AS d CROSS JOIN oncebox_message AS m ON m.number = d.message
WHERE d.state = 'dead' AND (?1 IS NULL OR d.handler = ?1) AND (?2 IS NULL OR m.channel = ?2)
    AND (?3 IS NULL OR d.code = ?3)
ORDER BY d.ended_at, d.number LIMIT ?4;
