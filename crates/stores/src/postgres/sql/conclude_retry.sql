UPDATE oncebox.delivery
SET due_at = $6::timestamptz + $7 * interval '1 microsecond', lease_until = NULL, started = false,
    holder = NULL, deaths = 0, attempts = $2, code = $3, reason = $4, history = $5
WHERE number = $1
