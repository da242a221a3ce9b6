-- The transaction remembers who claims the key, if nobody has it. Locks are the whole database's: the same key in another
-- schema is another key. The second lock, which everybody may have, shows others what the key is claimed for.
SELECT set_config(
    'gate.claimed_by',
    CASE WHEN pg_try_advisory_xact_lock($1 # ('oncebox.receipt'::regclass::oid::bigint << 32)) THEN
        CASE WHEN pg_try_advisory_xact_lock_shared(hashint8($3 # 'oncebox.receipt'::regclass::oid::bigint), $4) THEN $2::text END
    END,
    true
)
