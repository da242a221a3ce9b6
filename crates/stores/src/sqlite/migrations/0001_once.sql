-- The outbox is a log: a row is inserted once and never updated. SQLite has one
-- writer at a time and takes positions back on rollback, so positions follow
-- commit order and have no gaps.
--
-- `oncebox_` is replaced if another prefix is configured. Times are microseconds
-- since 1970; the expression works in the SQLite of older distributions too.
CREATE TABLE oncebox_outbox (
    position        INTEGER PRIMARY KEY AUTOINCREMENT,
    -- SQLite has no hash function; the last two characters and the length spread
    -- numbers, UUIDs and names well enough over eight shards.
    shard           INTEGER NOT NULL GENERATED ALWAYS AS (
        coalesce(unicode(substr(ordering_key, -1)) + 7 * coalesce(unicode(substr(ordering_key, -2, 1)), 0)
            + length(ordering_key), position) & 7) VIRTUAL,
    id              TEXT    NOT NULL DEFAULT (lower(hex(randomblob(16)))),
    source          TEXT    NOT NULL DEFAULT 'oncebox',
    type            TEXT    NOT NULL,
    schema_version  INTEGER NOT NULL DEFAULT 1,
    tenant          TEXT    NOT NULL DEFAULT '',
    ordering_key    TEXT,
    destination     TEXT    NOT NULL,
    subject         TEXT,
    aggregate_type  TEXT,
    content_type    TEXT    NOT NULL DEFAULT 'application/json',
    data_schema     TEXT,
    correlation_id  TEXT,
    causation_id    TEXT,
    idempotency_key TEXT,
    traceparent     TEXT,
    tracestate      TEXT,
    baggage         TEXT,
    headers         TEXT    NOT NULL DEFAULT '{}',
    created_at      INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)),
    payload         BLOB    NOT NULL,
    CONSTRAINT outbox_identity UNIQUE (tenant, source, id),
    CONSTRAINT outbox_id_length CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT outbox_source_length CHECK (length(CAST(source AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT outbox_type_length CHECK (length(CAST(type AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT outbox_tenant_length CHECK (length(CAST(tenant AS BLOB)) <= 255),
    CONSTRAINT outbox_key_length CHECK (length(CAST(ordering_key AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT outbox_destination_length CHECK (length(CAST(destination AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT outbox_headers_object CHECK (json_valid(headers) AND json_type(headers) = 'object')
);

-- Messages that wait for their time; they enter the log when it comes.
CREATE TABLE oncebox_scheduled (
    id              TEXT    NOT NULL DEFAULT (lower(hex(randomblob(16)))),
    source          TEXT    NOT NULL DEFAULT 'oncebox',
    type            TEXT    NOT NULL,
    schema_version  INTEGER NOT NULL DEFAULT 1,
    tenant          TEXT    NOT NULL DEFAULT '',
    ordering_key    TEXT,
    destination     TEXT    NOT NULL,
    subject         TEXT,
    aggregate_type  TEXT,
    content_type    TEXT    NOT NULL DEFAULT 'application/json',
    data_schema     TEXT,
    correlation_id  TEXT,
    causation_id    TEXT,
    idempotency_key TEXT,
    traceparent     TEXT,
    tracestate      TEXT,
    baggage         TEXT,
    headers         TEXT    NOT NULL DEFAULT '{}',
    payload         BLOB    NOT NULL,
    due_at          INTEGER NOT NULL,
    CONSTRAINT scheduled_identity PRIMARY KEY (tenant, source, id),
    CONSTRAINT scheduled_id_length CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT scheduled_source_length CHECK (length(CAST(source AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT scheduled_type_length CHECK (length(CAST(type AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT scheduled_tenant_length CHECK (length(CAST(tenant AS BLOB)) <= 255),
    CONSTRAINT scheduled_key_length CHECK (length(CAST(ordering_key AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT scheduled_destination_length CHECK (length(CAST(destination AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT scheduled_headers_object CHECK (json_valid(headers) AND json_type(headers) = 'object')
) WITHOUT ROWID;
CREATE INDEX oncebox_scheduled_due ON oncebox_scheduled (due_at);

-- How far each sink has come in each shard, and which relay may move it.
CREATE TABLE oncebox_relay_cursor (
    sink        TEXT    NOT NULL,
    shard       INTEGER NOT NULL,
    position    INTEGER NOT NULL DEFAULT 0,
    holes       TEXT    NOT NULL DEFAULT '[]',
    holder      TEXT,
    fence       INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER,
    moved_at    INTEGER,
    PRIMARY KEY (sink, shard)
) WITHOUT ROWID;

-- Relays that are alive, so that each can take its fair share.
CREATE TABLE oncebox_relay_member (
    sink       TEXT    NOT NULL,
    holder     TEXT    NOT NULL,
    seen_until INTEGER NOT NULL,
    PRIMARY KEY (sink, holder)
) WITHOUT ROWID;

-- The exceptions: messages a sink refused, those waiting behind them, dead letters.
CREATE TABLE oncebox_parked (
    sink         TEXT    NOT NULL,
    position     INTEGER NOT NULL,
    shard        INTEGER NOT NULL,
    tenant       TEXT    NOT NULL DEFAULT '',
    ordering_key TEXT,
    state        TEXT    NOT NULL CHECK (state IN ('waiting', 'behind', 'dead')),
    attempts     INTEGER NOT NULL DEFAULT 0,
    next_at      INTEGER,
    reason       TEXT,
    parked_at    INTEGER NOT NULL,
    PRIMARY KEY (sink, position)
) WITHOUT ROWID;
CREATE INDEX oncebox_parked_due ON oncebox_parked (sink, next_at) WHERE state = 'waiting';
CREATE INDEX oncebox_parked_lane ON oncebox_parked (sink, tenant, ordering_key, position);
CREATE INDEX oncebox_parked_position ON oncebox_parked (position);

-- One row per (handler, message) whose effects are committed.
CREATE TABLE oncebox_marker (
    tenant       TEXT    NOT NULL,
    handler      TEXT    NOT NULL,
    source       TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    digest       BLOB    NOT NULL,
    processed_at INTEGER NOT NULL,
    result       BLOB,
    CONSTRAINT marker_identity PRIMARY KEY (tenant, handler, source, id)
) WITHOUT ROWID;
CREATE INDEX oncebox_marker_age ON oncebox_marker (handler, processed_at);

-- Handlers that were entered and have not come back: what is left here after a
-- crash tells which message killed the process.
CREATE TABLE oncebox_entry (
    tenant     TEXT    NOT NULL,
    handler    TEXT    NOT NULL,
    source     TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    entries    INTEGER NOT NULL,
    entered_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, handler, source, id)
) WITHOUT ROWID;

-- Messages no handler could take, whole, until a person decides.
CREATE TABLE oncebox_dead_letter (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    channel  TEXT    NOT NULL,
    handler  TEXT    NOT NULL,
    tenant   TEXT    NOT NULL,
    source   TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    digest   BLOB    NOT NULL,
    code     TEXT    NOT NULL,
    reason   TEXT    NOT NULL,
    attempts INTEGER NOT NULL,
    envelope TEXT    NOT NULL,
    payload  BLOB    NOT NULL,
    died_at  INTEGER NOT NULL,
    UNIQUE (channel, handler, tenant, source, id, digest)
);
