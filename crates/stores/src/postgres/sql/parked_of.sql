SELECT number
FROM oncebox.delivery
WHERE scope = $1 AND handler = ANY ($2) AND state = 'parked'
LIMIT $3
