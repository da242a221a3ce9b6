-- Always one row. The lock was asked for by an earlier statement: what whoever had it before has committed is seen here.
SELECT
    coalesce(current_setting('gate.claimed_by', true) = $7::bigint::text, false) AS has_key,
    false AS taken, r.fingerprint = $3 AS same, r.state,
    (extract(epoch FROM r.lease_until - clock.now) * 1000000)::bigint AS left_over,
    (extract(epoch FROM r.expires_at - clock.now) * 1000000)::bigint AS kept_for, r.head, r.body,
    coalesce(
        (r.state <> 'in_flight' OR r.lease_until <= clock.now)
        AND (r.expires_at <= clock.now OR CASE
            WHEN r.fingerprint <> $3 THEN $6
            ELSE r.state <> 'sealed' AND $5
        END),
        true
    ) AS free
FROM (SELECT coalesce($4, clock_timestamp()) AS now) AS clock
LEFT JOIN oncebox.receipt AS r ON r.scope = $1 AND r.key = $2
