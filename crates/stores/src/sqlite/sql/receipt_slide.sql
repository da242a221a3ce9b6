UPDATE oncebox_receipt
SET expires_at = ?3
WHERE scope = ?1 AND key = ?2;
