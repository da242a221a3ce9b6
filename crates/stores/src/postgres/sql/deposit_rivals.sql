-- The body that a delivery, done or not, or a marker has under each key.
SELECT coalesce(
    (
        SELECT d.digest
        FROM oncebox.delivery AS d
        WHERE d.scope = r.scope AND d.handler = r.handler AND d.tenant = r.tenant
            AND d.key_source = r.key_source AND d.key_id = r.key_id
    ),
    (
        SELECT f.digest
        FROM oncebox.finished AS f
        WHERE f.scope = r.scope AND f.handler = r.handler AND f.tenant = r.tenant
            AND f.key_source = r.key_source AND f.key_id = r.key_id
    ),
    (
        SELECT k.digest
        FROM oncebox.marker AS k
        WHERE k.tenant = r.tenant AND k.handler = r.marker AND k.source = r.key_source AND k.id = r.key_id
    )
)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
    WITH ORDINALITY AS r (scope, handler, marker, tenant, key_source, key_id, n)
ORDER BY r.n
