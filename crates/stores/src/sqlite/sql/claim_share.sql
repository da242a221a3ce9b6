SELECT
    (SELECT count(*) FROM oncebox_relay_member WHERE sink = ?1 AND seen_until > ?3),
    (SELECT count(*) FROM oncebox_relay_cursor WHERE sink = ?1 AND holder = ?2);
