INSERT INTO oncebox_broom (name, holder, lease_until)
VALUES ('janitor', ?1, coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) + ?2)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until
WHERE oncebox_broom.holder = excluded.holder OR oncebox_broom.lease_until <= excluded.lease_until - ?2;
