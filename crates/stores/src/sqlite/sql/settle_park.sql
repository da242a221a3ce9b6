INSERT INTO oncebox_parked (
    sink, position, shard, tenant, ordering_key, state, attempts, next_at, reason, parked_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (sink, position) DO UPDATE SET
    state = excluded.state, attempts = excluded.attempts, next_at = excluded.next_at,
    reason = excluded.reason;
