-- The last word on a position wins. A row deleted by hand meanwhile has nothing left to park.
INSERT INTO oncebox.parked AS p (
    sink, position, shard, tenant, ordering_key, state, attempts, next_at, reason, parked_at
)
SELECT DISTINCT ON (m.position)
    $1, m.position, m.shard, m.tenant, m.ordering_key, m.state, m.attempts,
    coalesce($10, clock_timestamp()) + m.delay * interval '1 microsecond', m.reason,
    coalesce($10, clock_timestamp())
FROM unnest(
    $2::bigint[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::integer[], $8::bigint[], $9::text[]
) WITH ORDINALITY AS m (position, shard, tenant, ordering_key, state, attempts, delay, reason, n)
JOIN oncebox.outbox AS o ON o.position = m.position
ORDER BY m.position, m.n DESC
ON CONFLICT (sink, position) DO UPDATE
SET state = excluded.state, attempts = excluded.attempts, next_at = excluded.next_at, reason = excluded.reason
