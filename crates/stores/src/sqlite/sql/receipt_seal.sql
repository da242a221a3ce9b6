-- Sealed already by the same pass: what it was sealed with stays.
UPDATE oncebox_receipt
SET head = CASE state WHEN 'sealed' THEN head ELSE ?4 END, body = CASE state WHEN 'sealed' THEN body ELSE ?5 END,
    state = 'sealed'
WHERE scope = ?1 AND key = ?2 AND token = ?3 AND state <> 'in_doubt';
