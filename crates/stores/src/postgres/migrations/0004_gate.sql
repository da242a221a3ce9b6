-- The gate: what is known of each request that was made under a key. No index has what a run changes: a seal
-- and a renewal touch nothing but the row.
CREATE TABLE oncebox.receipt (
    scope        bytea       NOT NULL,
    key          bytea       NOT NULL,
    fingerprint  bytea       NOT NULL,
    state        text        NOT NULL CHECK (state IN ('in_flight', 'sealed', 'in_doubt')),
    token        bigint      NOT NULL,
    lease_until  timestamptz NOT NULL,
    admitted_at  timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    -- Status and headers of the reply, in a form of ours.
    head         bytea,
    body         bytea,
    PRIMARY KEY (scope, key)
) WITH (fillfactor = 50);
CREATE INDEX receipt_age ON oncebox.receipt (expires_at);
