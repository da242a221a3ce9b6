-- One share per row. Markers and the age gate are judged inside the statement, by the same clock as retention.
-- A share that an earlier one of this batch keeps back may find that one skipped: lane_free puts that right.
INSERT INTO oncebox.delivery (
    message, scope, handler, tenant, key_source, key_id, digest, lane, due_at, code, reason, ended_at, state
) SELECT
    a.message, a.scope, a.handler, a.tenant, a.key_source, a.key_id, a.digest,
    CASE WHEN a.code IS NULL OR NOT a.frees_lane THEN a.lane END, a.now, a.code, a.reason,
    CASE WHEN a.code IS NOT NULL THEN a.now END,
    CASE
        WHEN a.code IS NOT NULL THEN 'dead'
        WHEN a.lane IS NULL THEN 'ready'
        WHEN a.follows THEN 'behind'
        WHEN EXISTS (
            SELECT FROM oncebox.delivery AS front
            WHERE front.scope = a.scope AND front.handler = a.handler AND front.tenant = a.tenant
                AND front.lane = a.lane AND front.state <> 'discarded'
        ) THEN 'behind'
        ELSE 'ready'
    END
FROM (
    SELECT
        s.message, s.scope, s.handler, s.marker, s.tenant, s.key_source, s.key_id, s.digest, s.lane, s.follows,
        s.frees_lane, s.n, clock.now,
        coalesce(s.code, CASE WHEN s.old THEN 'too_old' END) AS code,
        coalesce(s.reason, CASE WHEN s.old THEN 'the message is older than what the markers can prove' END) AS reason
    FROM (SELECT coalesce($14, clock_timestamp()) AS now) AS clock
    CROSS JOIN LATERAL (
        SELECT u.*, u.time < clock.now - u.span * interval '1 microsecond' AS old
        FROM unnest(
            $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[],
            $9::text[], $10::timestamptz[], $11::bigint[], $12::text[], $13::text[], $15::boolean[],
            $16::boolean[]
        ) WITH ORDINALITY AS u (
            message, scope, handler, marker, tenant, key_source, key_id, digest, lane, time, span, code, reason,
            follows, frees_lane, n
        )
    ) AS s
) AS a
WHERE NOT EXISTS (
    SELECT FROM oncebox.marker AS k
    WHERE k.tenant = a.tenant AND k.handler = a.marker AND k.source = a.key_source AND k.id = a.key_id
) AND NOT EXISTS (
    SELECT FROM oncebox.finished AS f
    WHERE f.scope = a.scope AND f.handler = a.handler AND f.tenant = a.tenant
        AND f.key_source = a.key_source AND f.key_id = a.key_id
)
ORDER BY a.n
ON CONFLICT (key_id, key_source, handler, tenant, scope) DO NOTHING
RETURNING number
