-- The gate: what is known of each request that was made under a key.
CREATE TABLE oncebox_receipt (
    scope       BLOB    NOT NULL,
    key         BLOB    NOT NULL,
    fingerprint BLOB    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('in_flight', 'sealed', 'in_doubt')),
    token       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    admitted_at INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    -- Status and headers of the reply, in a form of ours.
    head        BLOB,
    body        BLOB,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX oncebox_receipt_age ON oncebox_receipt (expires_at);
