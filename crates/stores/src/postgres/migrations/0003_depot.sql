-- The durable inbox: each accepted message once, and one delivery per handler.
CREATE TABLE oncebox.message (
    number       bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope        text        NOT NULL COLLATE "C",
    channel      text        NOT NULL COLLATE "C",
    tenant       text        NOT NULL COLLATE "C",
    source       text        NOT NULL COLLATE "C",
    id           text        NOT NULL COLLATE "C",
    type         text        NOT NULL COLLATE "C",
    digest       bytea       NOT NULL,
    received_at  timestamptz NOT NULL,
    -- The message without its payload, as a CloudEvent.
    attributes   text        NOT NULL,
    payload      bytea       NOT NULL,
    CONSTRAINT message_identity UNIQUE (scope, channel, tenant, source, id)
);
CREATE INDEX message_age ON oncebox.message (received_at);

-- `due_at` is when somebody may take it: its time, or the end of its lease. So
-- one small index finds what is ready and what a dead worker has left behind.
-- `started` is in no index: to count an attempt touches nothing but the row.
CREATE TABLE oncebox.delivery (
    number       bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message      bigint      NOT NULL REFERENCES oncebox.message (number),
    scope        text        NOT NULL COLLATE "C",
    handler      text        NOT NULL COLLATE "C",
    tenant       text        NOT NULL COLLATE "C",
    key_source   text        NOT NULL COLLATE "C",
    key_id       text        NOT NULL COLLATE "C",
    digest       bytea       NOT NULL,
    lane         text        COLLATE "C",
    state        text        NOT NULL
        CHECK (state IN ('ready', 'leased', 'behind', 'parked', 'done', 'dead', 'discarded')),
    due_at       timestamptz NOT NULL,
    fence        bigint      NOT NULL DEFAULT 0,
    holder       text        COLLATE "C",
    started      boolean     NOT NULL DEFAULT false,
    attempts     integer     NOT NULL DEFAULT 0,
    deaths       integer     NOT NULL DEFAULT 0,
    generation   integer     NOT NULL DEFAULT 0,
    code         text,
    reason       text,
    -- The latest failed attempts, a JSON array.
    history      text        NOT NULL DEFAULT '[]',
    ended_at     timestamptz,
    replaced_by  bigint,
    CONSTRAINT delivery_identity UNIQUE (scope, handler, tenant, key_source, key_id)
) WITH (fillfactor = 80);
-- State before time: what is ready and what is leased are two short ranges, so neither a backlog nor what is
-- done is walked through to find a lease that has run out.
CREATE INDEX delivery_open ON oncebox.delivery (scope, handler, state, due_at, number)
    WHERE state NOT IN ('done', 'discarded');
CREATE INDEX delivery_suspect ON oncebox.delivery (scope, handler, due_at, number)
    WHERE state = 'ready' AND deaths > 0;
CREATE INDEX delivery_dead ON oncebox.delivery (ended_at, number) WHERE state = 'dead';
-- With the state before the number, the first that waits is found however many wait.
CREATE INDEX delivery_lane ON oncebox.delivery (scope, handler, tenant, lane, state, number)
    WHERE lane IS NOT NULL AND state NOT IN ('done', 'discarded');
CREATE INDEX delivery_ended ON oncebox.delivery (scope, handler, ended_at)
    WHERE state IN ('done', 'discarded');
CREATE INDEX delivery_message ON oncebox.delivery (message);

-- What a run has caused outside, so that the next run does not cause it again.
CREATE TABLE oncebox.effect (
    delivery    bigint      NOT NULL REFERENCES oncebox.delivery (number) ON DELETE CASCADE,
    generation  integer     NOT NULL,
    name        text        NOT NULL COLLATE "C",
    intended_at timestamptz NOT NULL,
    result      bytea,
    PRIMARY KEY (delivery, generation, name)
);

-- Handlers that somebody could run, and when that was last so.
CREATE TABLE oncebox.handler (
    scope   text        NOT NULL COLLATE "C",
    handler text        NOT NULL COLLATE "C",
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (scope, handler)
);

-- Who may sweep.
CREATE TABLE oncebox.broom (
    name        text        NOT NULL PRIMARY KEY COLLATE "C",
    holder      text        NOT NULL COLLATE "C",
    lease_until timestamptz NOT NULL
);
