UPDATE oncebox.delivery
SET started = true, attempts = attempts + 1
WHERE number = $1 AND fence = $2 AND lease_until IS NOT NULL AND NOT started
