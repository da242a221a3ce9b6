-- ?1 has scope and key of each, one after the other, ?2 their replies, and ?3 their tokens and where each reply is in ?2.
-- Sealed already by the same pass: what it was sealed with stays.
UPDATE oncebox_receipt AS r
SET head = CASE r.state WHEN 'sealed' THEN r.head ELSE s.head END,
    body = CASE r.state WHEN 'sealed' THEN r.body ELSE s.body END,
    state = 'sealed'
FROM (
    SELECT
        substr(?1, 1 + 64 * e.key, 32) AS scope, substr(?1, 33 + 64 * e.key, 32) AS key, e.value ->> 0 AS token,
        substr(?2, e.value ->> 1, e.value ->> 2) AS head, substr(?2, e.value ->> 3, e.value ->> 4) AS body
    FROM json_each(?3) AS e
) AS s
WHERE r.scope = s.scope AND r.key = s.key AND r.token = s.token AND r.state <> 'in_doubt'
RETURNING key, token;
