-- What still runs is not forgotten under its feet.
DELETE FROM oncebox.receipt
WHERE (scope, key) IN (
    SELECT r.scope, r.key
    FROM oncebox.receipt AS r
    WHERE r.expires_at <= coalesce($2, clock_timestamp())
        AND (r.state <> 'in_flight' OR r.lease_until <= coalesce($2, clock_timestamp()))
    ORDER BY r.expires_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
)
