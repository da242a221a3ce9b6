-- One that may be passed leaves its lane for good; otherwise it would keep back what comes later.
UPDATE oncebox.delivery
SET state = $7, ended_at = $6, started = false, holder = NULL, attempts = $2, code = $3,
    reason = $4, history = $5, lane = CASE WHEN $8 THEN NULL ELSE lane END
WHERE number = $1
