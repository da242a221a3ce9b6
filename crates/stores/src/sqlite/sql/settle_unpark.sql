DELETE FROM oncebox_parked WHERE sink = ?1 AND position IN (SELECT value FROM json_each(?2));
