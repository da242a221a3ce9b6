UPDATE oncebox_receipt
SET lease_until = coalesce(?5, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) + ?4
WHERE scope = ?1 AND key = ?2 AND token = ?3 AND state = 'in_flight';
