SELECT count(*) FROM oncebox.relay_member WHERE sink = $1 AND seen_until > coalesce($2, clock_timestamp())
