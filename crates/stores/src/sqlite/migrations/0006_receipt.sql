-- In the order in which they came, and found by an index. A table in the order of the keys, which are random, has each
-- receipt on a page of its own, and a commit that is shared by many wrote that page for each of them, twice.
DROP INDEX oncebox_receipt_age;
ALTER TABLE oncebox_receipt RENAME TO oncebox_receipt_before;
CREATE TABLE oncebox_receipt (
    number      INTEGER PRIMARY KEY,
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
    body        BLOB
);
INSERT INTO oncebox_receipt (
    scope, key, fingerprint, state, token, lease_until, admitted_at, expires_at, head, body
) SELECT scope, key, fingerprint, state, token, lease_until, admitted_at, expires_at, head, body
FROM oncebox_receipt_before
ORDER BY admitted_at;
DROP TABLE oncebox_receipt_before;
CREATE UNIQUE INDEX oncebox_receipt_identity ON oncebox_receipt (scope, key);
CREATE INDEX oncebox_receipt_age ON oncebox_receipt (expires_at);
