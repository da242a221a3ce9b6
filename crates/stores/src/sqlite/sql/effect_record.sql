INSERT INTO oncebox_effect (delivery, generation, name, intended_at, result)
SELECT number, generation, ?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER), ?4
FROM oncebox_delivery WHERE number = ?1 AND fence = ?2 AND state = 'leased'
ON CONFLICT (delivery, generation, name) DO UPDATE SET result = excluded.result;
