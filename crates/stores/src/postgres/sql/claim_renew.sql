-- An expired lease that nobody took is still ours: taking it is what raises the fence.
UPDATE oncebox.relay_cursor
SET lease_until = coalesce($4, clock_timestamp()) + $3 * interval '1 microsecond'
WHERE sink = $1 AND holder = $2
