SELECT digest
FROM oncebox.delivery
WHERE scope = $1 AND handler = $2 AND tenant = $3 AND key_source = $4 AND key_id = $5
UNION ALL
SELECT digest
FROM oncebox.finished
WHERE scope = $1 AND handler = $2 AND tenant = $3 AND key_source = $4 AND key_id = $5
