DELETE FROM oncebox_relay_member WHERE sink = ?1 AND holder = ?2;
