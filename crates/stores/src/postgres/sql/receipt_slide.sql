UPDATE oncebox.receipt
SET expires_at = coalesce($3, clock_timestamp()) + $4 * interval '1 microsecond'
WHERE scope = $1 AND key = $2
