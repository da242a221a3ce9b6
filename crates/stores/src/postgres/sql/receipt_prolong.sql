UPDATE oncebox.receipt AS r
SET lease_until = coalesce($5, clock_timestamp()) + $4 * interval '1 microsecond'
FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) AS p (scope, key, token)
WHERE r.scope = p.scope AND r.key = p.key AND r.token = p.token AND r.state = 'in_flight'
RETURNING r.token
