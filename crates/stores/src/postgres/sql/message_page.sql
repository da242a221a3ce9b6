SELECT number, attributes, payload
FROM oncebox.message
WHERE scope = $1 AND channel = $2 AND type = $3 AND received_at >= $4 AND number > $5
ORDER BY number
LIMIT $6
