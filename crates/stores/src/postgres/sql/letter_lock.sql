-- What is needed to decide about a dead letter, and whether it is too old to be tried again.
SELECT
    coalesce(m.received_at < coalesce($3, clock_timestamp()) - $2::bigint * interval '1 microsecond', false) AS too_old,
    d.scope, m.channel, d.handler, d.tenant, d.lane
FROM oncebox.delivery AS d
JOIN oncebox.message AS m ON m.number = d.message
WHERE d.number = $1 AND d.state = 'dead'
FOR UPDATE OF d
