-- Locked, so that it is not purged before its new share is there.
SELECT number, digest = $6
FROM oncebox.message
WHERE scope = $1 AND channel = $2 AND tenant = $3 AND source = $4 AND id = $5
FOR KEY SHARE
