UPDATE oncebox_receipt
SET state = 'in_doubt'
WHERE scope = ?1 AND key = ?2 AND token = ?3 AND state = 'in_flight';
