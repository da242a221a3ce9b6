-- Whether whoever has the key has claimed it for another request. If nobody has it any more, that is not known.
SELECT coalesce(bool_and(objid <> $2::integer::oid), false)
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = hashint8($1 # 'oncebox.receipt'::regclass::oid::bigint)::oid
