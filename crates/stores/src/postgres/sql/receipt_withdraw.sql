DELETE FROM oncebox.receipt
WHERE scope = $1 AND key = $2 AND token = $3 AND state = 'in_flight'
