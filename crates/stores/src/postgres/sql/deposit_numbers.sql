-- Which of these messages have one of the numbers that were just given out.
SELECT (
    SELECT m.number
    FROM oncebox.message AS m
    WHERE m.scope = k.scope AND m.channel = k.channel AND m.tenant = k.tenant AND m.source = k.source AND m.id = k.id
        AND m.number = ANY ($6)
)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
    WITH ORDINALITY AS k (scope, channel, tenant, source, id, n)
ORDER BY k.n
