UPDATE oncebox.delivery
SET started = true, attempts = attempts + 1
WHERE number = $1 AND fence = $2 AND state = 'leased' AND NOT started
