-- Always one row, for the clock's sake.
SELECT
    coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) AS now, r.fingerprint, r.state,
    r.token, r.lease_until, r.expires_at, r.head, r.body
FROM (SELECT 1)
LEFT JOIN oncebox_receipt AS r ON r.scope = ?1 AND r.key = ?2;
