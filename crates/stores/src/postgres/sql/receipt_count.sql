-- No more than that are looked at, all of them by the primary key.
SELECT count(*)
FROM (SELECT 1 FROM oncebox.receipt WHERE scope = $1 LIMIT $2) AS receipts
