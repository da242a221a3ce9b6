SELECT
    d.number, d.scope, m.channel, d.handler, coalesce(d.code, ''), coalesce(d.reason, ''), d.attempts,
    m.received_at, coalesce(d.ended_at, m.received_at), m.attributes, m.payload, d.history,
    (
        SELECT count(*)
        FROM (
            SELECT
            FROM oncebox.delivery AS b
            WHERE b.scope = d.scope AND b.handler = d.handler AND b.tenant = d.tenant AND b.lane = d.lane
                AND b.state = 'behind' AND b.number > d.number
            LIMIT $6
        ) AS behind
    )
FROM oncebox.delivery AS d
JOIN oncebox.message AS m ON m.number = d.message
WHERE d.state = 'dead' AND ($1::bigint IS NULL OR d.number = $1)
    AND ($2::text IS NULL OR d.handler = $2)
    AND ($3::text IS NULL OR m.channel = $3)
    AND ($4::text IS NULL OR d.code = $4)
ORDER BY d.ended_at, d.number
LIMIT $5
