INSERT INTO oncebox_relay_member (sink, holder, seen_until, outage) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (sink, holder) DO UPDATE SET seen_until = excluded.seen_until, outage = excluded.outage;
