-- Takes the write lock and changes nothing.
DELETE FROM oncebox_relay_member WHERE 0;
