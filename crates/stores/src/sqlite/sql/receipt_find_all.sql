-- A row for each key, in their order. ?1 has scope and key of each, one after the other.
SELECT
    CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER) AS now, r.fingerprint, r.state,
    r.token, r.lease_until, r.expires_at, r.head, r.body
FROM json_each(?2) AS asked
LEFT JOIN oncebox_receipt AS r
    ON r.scope = substr(?1, 1 + 64 * asked.value, 32) AND r.key = substr(?1, 33 + 64 * asked.value, 32)
ORDER BY asked.value;
