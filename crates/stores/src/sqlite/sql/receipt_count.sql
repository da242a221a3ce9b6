-- No more than that are looked at, all of them by an index.
SELECT count(*)
FROM (SELECT 1 FROM oncebox_receipt WHERE scope = ?1 LIMIT ?2) AS receipts;
