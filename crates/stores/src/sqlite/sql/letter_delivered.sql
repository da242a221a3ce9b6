SELECT d.number, d.scope, m.channel, d.handler, coalesce(d.code, ''), coalesce(d.reason, ''), d.attempts,
    m.received_at, d.ended_at,
    (SELECT count(*) FROM (
        SELECT 1 FROM oncebox_delivery AS b
        WHERE b.scope = d.scope AND b.handler = d.handler AND b.tenant = d.tenant AND b.lane = d.lane
            AND b.state NOT IN ('done', 'discarded') AND b.state = 'behind' AND b.number > d.number
        LIMIT ?2)),
    d.history, m.attributes, m.payload
FROM oncebox_delivery AS d CROSS JOIN oncebox_message AS m ON m.number = d.message
WHERE d.number = ?1 AND d.state = 'dead';
