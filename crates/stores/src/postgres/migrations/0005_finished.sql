-- What is done moves to a table of its own, and a lease leaves the row where it is: neither touches an index of
-- `delivery` but to leave it. See docs/adr/0009-what-is-done-moves-out.md.
CREATE TABLE oncebox.finished (
    number       bigint      NOT NULL PRIMARY KEY,
    message      bigint      NOT NULL,
    scope        text        NOT NULL COLLATE "C",
    handler      text        NOT NULL COLLATE "C",
    tenant       text        NOT NULL COLLATE "C",
    key_source   text        NOT NULL COLLATE "C",
    key_id       text        NOT NULL COLLATE "C",
    digest       bytea       NOT NULL,
    lane         text        COLLATE "C",
    fence        bigint      NOT NULL,
    attempts     integer     NOT NULL,
    generation   integer     NOT NULL,
    -- The failed attempts before the good one, a JSON array.
    history      text        NOT NULL,
    ended_at     timestamptz NOT NULL,
    CONSTRAINT finished_identity UNIQUE (scope, handler, tenant, key_source, key_id)
);
CREATE INDEX finished_ended ON oncebox.finished (scope, handler, ended_at);
CREATE INDEX finished_message ON oncebox.finished (message);

-- Whoever gives a stored message to a handler, and whoever purges messages, locks the message. That is all that
-- foreign keys did, at a tenth of the price.
ALTER TABLE oncebox.delivery DROP CONSTRAINT delivery_message_fkey;
ALTER TABLE oncebox.effect DROP CONSTRAINT effect_delivery_fkey;

INSERT INTO oncebox.finished
        (number, message, scope, handler, tenant, key_source, key_id, digest, lane, fence, attempts, generation,
        history, ended_at)
    SELECT number, message, scope, handler, tenant, key_source, key_id, digest, lane, fence, attempts, generation,
        history, coalesce(ended_at, clock_timestamp())
    FROM oncebox.delivery
    WHERE state = 'done';
DELETE FROM oncebox.delivery WHERE state = 'done';

-- Set while somebody holds it. In no index, and no index is bound to it: a row with room beside it is leased
-- without a word to any of them. Hence the fillfactor.
ALTER TABLE oncebox.delivery ADD COLUMN lease_until timestamptz;
ALTER TABLE oncebox.delivery SET (fillfactor = 50);
ALTER TABLE oncebox.delivery DROP CONSTRAINT delivery_state_check;
UPDATE oncebox.delivery
SET state = 'ready', lease_until = due_at, due_at = least(due_at, clock_timestamp())
WHERE state = 'leased';
ALTER TABLE oncebox.delivery ADD CONSTRAINT delivery_state_check
    CHECK (state IN ('ready', 'behind', 'parked', 'dead', 'discarded'));

DROP INDEX oncebox.delivery_open;
DROP INDEX oncebox.delivery_lane;
DROP INDEX oncebox.delivery_ended;
-- State before time: a backlog is not walked through to find what is parked or dead. Time before number: what is
-- leased was due first, so it stands in front, and there are never many of it.
CREATE INDEX delivery_open ON oncebox.delivery (scope, handler, state, due_at, number) WHERE state <> 'discarded';
CREATE INDEX delivery_lane ON oncebox.delivery (scope, handler, tenant, lane, state, number)
    WHERE lane IS NOT NULL AND state <> 'discarded';
CREATE INDEX delivery_discarded ON oncebox.delivery (scope, handler, ended_at) WHERE state = 'discarded';
