UPDATE oncebox.parked
SET state = 'waiting', attempts = 0, next_at = coalesce($3, clock_timestamp())
WHERE sink = $1 AND position = $2 AND state = 'dead'
