-- The outbox is a log: a row is inserted once and never updated, so that an old
-- snapshot held open by somebody else cannot slow a reader down.
--
-- `oncebox.` is replaced if another schema is configured. CACHE 1 matters: a
-- position handed out must belong to a transaction that is open at that moment.
CREATE TABLE oncebox.outbox (
    position        bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    shard           smallint    NOT NULL GENERATED ALWAYS AS (
        (coalesce(hashtextextended(ordering_key, 0), position) & 7)::smallint) STORED,
    id              text        NOT NULL DEFAULT gen_random_uuid()::text COLLATE "C",
    source          text        NOT NULL DEFAULT 'oncebox' COLLATE "C",
    type            text        NOT NULL COLLATE "C",
    schema_version  integer     NOT NULL DEFAULT 1,
    tenant          text        NOT NULL DEFAULT '' COLLATE "C",
    ordering_key    text        COLLATE "C",
    destination     text        NOT NULL COLLATE "C",
    subject         text,
    aggregate_type  text,
    content_type    text        NOT NULL DEFAULT 'application/json',
    data_schema     text,
    correlation_id  text,
    causation_id    text,
    idempotency_key text,
    traceparent     text,
    tracestate      text,
    baggage         text,
    headers         jsonb       NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    payload         bytea       NOT NULL,
    CONSTRAINT outbox_identity UNIQUE (tenant, source, id),
    CONSTRAINT outbox_id_length CHECK (octet_length(id) BETWEEN 1 AND 255),
    CONSTRAINT outbox_source_length CHECK (octet_length(source) BETWEEN 1 AND 255),
    CONSTRAINT outbox_type_length CHECK (octet_length(type) BETWEEN 1 AND 255),
    CONSTRAINT outbox_tenant_length CHECK (octet_length(tenant) <= 255),
    CONSTRAINT outbox_key_length CHECK (octet_length(ordering_key) BETWEEN 1 AND 255),
    CONSTRAINT outbox_destination_length CHECK (octet_length(destination) BETWEEN 1 AND 255),
    CONSTRAINT outbox_headers_object CHECK (jsonb_typeof(headers) = 'object')
);

-- Messages that wait for their time; they enter the log when it comes.
CREATE TABLE oncebox.scheduled (
    LIKE oncebox.outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    due_at timestamptz NOT NULL,
    CONSTRAINT scheduled_identity PRIMARY KEY (tenant, source, id)
);
ALTER TABLE oncebox.scheduled DROP COLUMN position, DROP COLUMN shard, DROP COLUMN created_at;
CREATE INDEX scheduled_due ON oncebox.scheduled (due_at);

-- How far each sink has come in each shard, and which relay may move it.
CREATE TABLE oncebox.relay_cursor (
    sink        text        NOT NULL COLLATE "C",
    shard       smallint    NOT NULL,
    position    bigint      NOT NULL DEFAULT 0,
    holes       bigint[]    NOT NULL DEFAULT '{}',
    holder      text        COLLATE "C",
    fence       bigint      NOT NULL DEFAULT 0,
    lease_until timestamptz,
    moved_at    timestamptz,
    PRIMARY KEY (sink, shard)
) WITH (fillfactor = 20);

-- Relays that are alive, so that each can take its fair share.
CREATE TABLE oncebox.relay_member (
    sink       text        NOT NULL COLLATE "C",
    holder     text        NOT NULL COLLATE "C",
    seen_until timestamptz NOT NULL,
    PRIMARY KEY (sink, holder)
);

-- The exceptions: messages a sink refused, those waiting behind them, dead letters.
CREATE TABLE oncebox.parked (
    sink         text        NOT NULL COLLATE "C",
    position     bigint      NOT NULL REFERENCES oncebox.outbox (position),
    shard        smallint    NOT NULL,
    tenant       text        NOT NULL DEFAULT '' COLLATE "C",
    ordering_key text        COLLATE "C",
    state        text        NOT NULL CHECK (state IN ('waiting', 'behind', 'dead')),
    attempts     integer     NOT NULL DEFAULT 0,
    next_at      timestamptz,
    reason       text,
    parked_at    timestamptz NOT NULL,
    PRIMARY KEY (sink, position)
);
CREATE INDEX parked_due ON oncebox.parked (sink, next_at) WHERE state = 'waiting';
CREATE INDEX parked_lane ON oncebox.parked (sink, tenant, ordering_key, position);
CREATE INDEX parked_position ON oncebox.parked (position);

-- One row per (handler, message) whose effects are committed.
CREATE TABLE oncebox.marker (
    tenant       text        NOT NULL COLLATE "C",
    handler      text        NOT NULL COLLATE "C",
    source       text        NOT NULL COLLATE "C",
    id           text        NOT NULL COLLATE "C",
    digest       bytea       NOT NULL,
    processed_at timestamptz NOT NULL,
    result       bytea,
    CONSTRAINT marker_identity PRIMARY KEY (tenant, handler, source, id)
);
CREATE INDEX marker_age ON oncebox.marker (handler, processed_at);

-- Handlers that were entered and have not come back: what is left here after a
-- crash tells which message killed the process.
CREATE TABLE oncebox.entry (
    tenant     text        NOT NULL COLLATE "C",
    handler    text        NOT NULL COLLATE "C",
    source     text        NOT NULL COLLATE "C",
    id         text        NOT NULL COLLATE "C",
    entries    integer     NOT NULL,
    entered_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, handler, source, id)
);

-- Messages no handler could take, whole, until a person decides.
CREATE TABLE oncebox.dead_letter (
    number    bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel   text        NOT NULL,
    handler   text        NOT NULL,
    tenant    text        NOT NULL,
    source    text        NOT NULL,
    id        text        NOT NULL,
    digest    bytea       NOT NULL,
    code      text        NOT NULL,
    reason    text        NOT NULL,
    attempts  integer     NOT NULL,
    envelope  jsonb       NOT NULL,
    payload   bytea       NOT NULL,
    died_at   timestamptz NOT NULL
);
CREATE UNIQUE INDEX dead_letter_identity ON oncebox.dead_letter
    (channel, handler, md5(tenant), md5(source), md5(id), digest);
