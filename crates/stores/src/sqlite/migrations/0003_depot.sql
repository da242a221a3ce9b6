-- The durable inbox: each accepted message once, and one delivery per handler.
CREATE TABLE oncebox_message (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    scope       TEXT    NOT NULL,
    channel     TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    source      TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    type        TEXT    NOT NULL,
    digest      BLOB    NOT NULL,
    received_at INTEGER NOT NULL,
    -- The message without its payload, as a CloudEvent.
    attributes  TEXT    NOT NULL,
    payload     BLOB    NOT NULL,
    CONSTRAINT message_identity UNIQUE (scope, channel, tenant, source, id)
);
CREATE INDEX oncebox_message_age ON oncebox_message (received_at);

-- `due_at` is when somebody may take it: its time, or the end of its lease.
-- `started` is in no index: to count an attempt touches nothing but the row.
CREATE TABLE oncebox_delivery (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    message     INTEGER NOT NULL REFERENCES oncebox_message (number),
    scope       TEXT    NOT NULL,
    handler     TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    key_source  TEXT    NOT NULL,
    key_id      TEXT    NOT NULL,
    digest      BLOB    NOT NULL,
    lane        TEXT,
    state       TEXT    NOT NULL
        CHECK (state IN ('ready', 'leased', 'behind', 'parked', 'done', 'dead', 'discarded')),
    due_at      INTEGER NOT NULL,
    fence       INTEGER NOT NULL DEFAULT 0,
    holder      TEXT,
    started     INTEGER NOT NULL DEFAULT 0,
    attempts    INTEGER NOT NULL DEFAULT 0,
    deaths      INTEGER NOT NULL DEFAULT 0,
    generation  INTEGER NOT NULL DEFAULT 0,
    code        TEXT,
    reason      TEXT,
    -- The latest failed attempts, a JSON array.
    history     TEXT    NOT NULL DEFAULT '[]',
    ended_at    INTEGER,
    replaced_by INTEGER,
    CONSTRAINT delivery_identity UNIQUE (scope, handler, tenant, key_source, key_id)
);
-- What is over leaves these, so they stay small however long the history is.
-- With the state before the time, an expired lease is found however much is ready.
CREATE INDEX oncebox_delivery_open ON oncebox_delivery (scope, handler, state, due_at, number)
    WHERE state NOT IN ('done', 'discarded');
CREATE INDEX oncebox_delivery_suspect ON oncebox_delivery (scope, handler, due_at, number)
    WHERE deaths > 0 AND state = 'ready';
CREATE INDEX oncebox_delivery_lane ON oncebox_delivery (scope, handler, tenant, lane, state, number)
    WHERE lane IS NOT NULL AND state NOT IN ('done', 'discarded');
CREATE INDEX oncebox_delivery_dead ON oncebox_delivery (ended_at, number)
    WHERE state = 'dead';
CREATE INDEX oncebox_delivery_ended ON oncebox_delivery (scope, handler, ended_at)
    WHERE state IN ('done', 'discarded');
CREATE INDEX oncebox_delivery_message ON oncebox_delivery (message);

-- What a run has caused outside, so that the next run does not cause it again.
CREATE TABLE oncebox_effect (
    delivery    INTEGER NOT NULL REFERENCES oncebox_delivery (number) ON DELETE CASCADE,
    generation  INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    intended_at INTEGER NOT NULL,
    result      BLOB,
    PRIMARY KEY (delivery, generation, name)
) WITHOUT ROWID;

-- Handlers that somebody could run, and when that was last so.
CREATE TABLE oncebox_handler (
    scope   TEXT    NOT NULL,
    handler TEXT    NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (scope, handler)
) WITHOUT ROWID;

-- Who may sweep.
CREATE TABLE oncebox_broom (
    name        TEXT    NOT NULL PRIMARY KEY,
    holder      TEXT    NOT NULL,
    lease_until INTEGER NOT NULL
) WITHOUT ROWID;
