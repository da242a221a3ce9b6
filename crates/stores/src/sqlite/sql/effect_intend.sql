-- The update changes nothing; it makes the row that is there come back.
INSERT INTO oncebox_effect (delivery, generation, name, intended_at)
SELECT number, generation, ?3, coalesce(?4, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
FROM oncebox_delivery WHERE number = ?1 AND fence = ?2 AND state = 'leased'
ON CONFLICT (delivery, generation, name) DO UPDATE SET name = excluded.name
RETURNING result;
