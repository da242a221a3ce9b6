-- Every transaction that may still fill a position; see holes.rs.
SELECT DISTINCT virtualtransaction
FROM pg_catalog.pg_locks
WHERE locktype = 'relation'
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND relation = 'oncebox.outbox'::regclass
    AND mode = 'RowExclusiveLock'
    AND granted
