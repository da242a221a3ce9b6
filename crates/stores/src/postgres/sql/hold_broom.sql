INSERT INTO oncebox.broom AS b (name, holder, lease_until)
VALUES ('janitor', $1, coalesce($3, clock_timestamp()) + $2 * interval '1 microsecond')
ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder, lease_until = excluded.lease_until
WHERE b.holder = excluded.holder OR b.lease_until <= coalesce($3, clock_timestamp())
