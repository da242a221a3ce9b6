-- An expired lease that nobody took is still ours: the fence says so.
UPDATE oncebox_relay_cursor SET lease_until = ?3 WHERE sink = ?1 AND holder = ?2;
