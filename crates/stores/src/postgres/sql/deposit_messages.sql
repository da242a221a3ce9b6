-- Sorted by place in the batch: numbers follow the caller's order, and so does what is returned.
INSERT INTO oncebox.message (
    scope, channel, tenant, source, id, type, digest, attributes, payload, received_at
) SELECT
    m.scope, m.channel, m.tenant, m.source, m.id, m.type, m.digest, m.attributes, m.payload,
    coalesce($10, clock_timestamp())
FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::bytea[]
) WITH ORDINALITY AS m (scope, channel, tenant, source, id, type, digest, attributes, payload, n)
ORDER BY m.n
ON CONFLICT (id, source, tenant, channel, scope) DO NOTHING
RETURNING number
