-- A replay only reads. Who finds nothing in the way asks for the key's lock first: whoever has it has been let in by
-- a transaction that has not committed, and to wait for that would hold a connection for as long as a handler runs.
-- No row at all, or one that is `free`, means that somebody else was quicker. Who finds itself there asks again because
-- the answer got lost: it is in.
WITH clock AS (
    SELECT coalesce($5, clock_timestamp()) AS now
), found AS (
    SELECT
        r.state = 'in_flight' AND r.lease_until > clock.now AND r.token = $4 AS own,
        r.fingerprint = $3 AS same, r.state, r.head, r.body,
        (extract(epoch FROM r.lease_until - clock.now) * 1000000)::bigint AS left_over,
        (extract(epoch FROM r.expires_at - clock.now) * 1000000)::bigint AS kept_for,
        (r.state <> 'in_flight' OR r.lease_until <= clock.now)
        AND (r.expires_at <= clock.now OR CASE
            WHEN r.fingerprint <> $3 THEN $9
            ELSE r.state <> 'sealed' AND $8
        END) AS free
    FROM oncebox.receipt AS r
    CROSS JOIN clock
    WHERE r.scope = $1 AND r.key = $2
), taken AS (
    INSERT INTO oncebox.receipt AS r (
        scope, key, fingerprint, state, token, lease_until, admitted_at, expires_at
    ) SELECT
        $1, $2, $3, 'in_flight', $4, clock.now + $6 * interval '1 microsecond', clock.now,
        clock.now + $7 * interval '1 microsecond'
    FROM clock
    WHERE CASE
        WHEN EXISTS (SELECT FROM found WHERE NOT free) THEN false
        -- Locks are the whole database's: the same key in another schema is another key.
        WHEN NOT pg_try_advisory_xact_lock($10 # ('oncebox.receipt'::regclass::oid::bigint << 32)) THEN false
        -- Relaxed: for this transaction, which is this statement, COMMIT does not wait for the disk. The seal's does, for both.
        WHEN $11 THEN set_config('synchronous_commit', 'off', true) IS NOT NULL
        ELSE true
    END
    ON CONFLICT (scope, key) DO UPDATE
    SET fingerprint = excluded.fingerprint, state = excluded.state, token = excluded.token,
        lease_until = excluded.lease_until, admitted_at = excluded.admitted_at, expires_at = excluded.expires_at,
        head = NULL, body = NULL
    WHERE (r.state <> 'in_flight' OR r.lease_until <= excluded.admitted_at)
        AND (r.expires_at <= excluded.admitted_at OR CASE
            WHEN r.fingerprint <> excluded.fingerprint THEN $9
            ELSE r.state <> 'sealed' AND $8
        END)
    RETURNING token
)
SELECT true AS taken, NULL::boolean AS same, NULL::text AS state, NULL::bigint AS left_over,
    NULL::bigint AS kept_for, NULL::bytea AS head, NULL::bytea AS body, false AS free
FROM taken
UNION ALL
SELECT own, same, state, left_over, kept_for, head, body, free
FROM found
WHERE NOT EXISTS (SELECT FROM taken)
