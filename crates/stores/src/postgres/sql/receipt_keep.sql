-- Whose key it is: nobody's, or ours by a row of this transaction. If it is another's, or the transaction is no longer the
-- one that has claimed it, there is no state to write, which is an error: no COMMIT that follows is one.
INSERT INTO oncebox.receipt AS r (
    scope, key, fingerprint, state, token, lease_until, admitted_at, expires_at, head, body
) VALUES (
    $1::bytea, $2::bytea, $3::bytea, CASE WHEN current_setting('gate.claimed_by', true) = $4::bigint::text THEN 'sealed' END,
    $4::bigint, coalesce($5::timestamptz, now()), coalesce($5::timestamptz, now()),
    coalesce($5::timestamptz, now()) + $6::bigint * interval '1 microsecond', $7::bytea, $8::bytea
)
ON CONFLICT (scope, key) DO UPDATE
SET state = CASE WHEN r.token = excluded.token AND r.state = 'in_flight' THEN excluded.state END,
    head = excluded.head, body = excluded.body
