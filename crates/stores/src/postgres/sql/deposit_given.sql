-- Which of these shares have one of the numbers that were just given out.
SELECT (
    SELECT d.number
    FROM oncebox.delivery AS d
    WHERE d.scope = s.scope AND d.handler = s.handler AND d.tenant = s.tenant
        AND d.key_source = s.key_source AND d.key_id = s.key_id AND d.message = s.message AND d.number = ANY ($7)
)
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
    WITH ORDINALITY AS s (message, scope, handler, tenant, key_source, key_id, n)
ORDER BY s.n
