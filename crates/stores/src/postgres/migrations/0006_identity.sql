-- What tells rows apart stands first in their keys: each step down such an index then compares one column, where
-- before it compared four that are the same in nearly every row. See docs/adr/0011-ids-first.md.
ALTER TABLE oncebox.outbox
    DROP CONSTRAINT outbox_identity,
    ADD CONSTRAINT outbox_identity UNIQUE (id, source, tenant);
ALTER TABLE oncebox.marker
    DROP CONSTRAINT marker_identity,
    ADD CONSTRAINT marker_identity PRIMARY KEY (id, source, handler, tenant);
ALTER TABLE oncebox.message
    DROP CONSTRAINT message_identity,
    ADD CONSTRAINT message_identity UNIQUE (id, source, tenant, channel, scope);
ALTER TABLE oncebox.delivery
    DROP CONSTRAINT delivery_identity,
    ADD CONSTRAINT delivery_identity UNIQUE (key_id, key_source, handler, tenant, scope);
ALTER TABLE oncebox.finished
    DROP CONSTRAINT finished_identity,
    ADD CONSTRAINT finished_identity UNIQUE (key_id, key_source, handler, tenant, scope);
