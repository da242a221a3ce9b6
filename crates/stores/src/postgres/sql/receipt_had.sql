-- Whether the lock of a key is had by somebody: if not, it is had by this statement, until it ends.
SELECT NOT pg_try_advisory_xact_lock($1 # ('oncebox.receipt'::regclass::oid::bigint << 32))
