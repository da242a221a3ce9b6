INSERT INTO oncebox.relay_member (sink, holder, seen_until, outage)
VALUES ($1, $2, coalesce($4, clock_timestamp()) + $3 * interval '1 microsecond', $5)
ON CONFLICT (sink, holder) DO UPDATE SET seen_until = excluded.seen_until, outage = excluded.outage
