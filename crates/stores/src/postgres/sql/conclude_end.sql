-- One that may be passed leaves its lane for good; otherwise it would keep back what comes later.
UPDATE oncebox.delivery
SET state = 'dead', ended_at = $6, lease_until = NULL, started = false, holder = NULL, attempts = $2, code = $3,
    reason = $4, history = $5, lane = CASE WHEN $7 THEN NULL ELSE lane END
WHERE number = $1
