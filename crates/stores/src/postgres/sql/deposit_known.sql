SELECT (
    SELECT m.digest
    FROM oncebox.message AS m
    WHERE m.scope = k.scope AND m.channel = k.channel AND m.tenant = k.tenant AND m.source = k.source AND m.id = k.id
)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
    WITH ORDINALITY AS k (scope, channel, tenant, source, id, n)
ORDER BY k.n
