-- What still runs is not forgotten under its feet.
DELETE FROM oncebox_receipt
WHERE number IN (
    SELECT number
    FROM oncebox_receipt
    WHERE expires_at <= coalesce(?2, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
        AND (state <> 'in_flight'
            OR lease_until <= coalesce(?2, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)))
    ORDER BY expires_at
    LIMIT ?1
);
