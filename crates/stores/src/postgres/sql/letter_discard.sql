UPDATE oncebox.delivery
SET state = 'discarded', ended_at = coalesce($2, clock_timestamp()), replaced_by = $3
WHERE number = $1 AND state = 'dead'
