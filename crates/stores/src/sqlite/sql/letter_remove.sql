DELETE FROM oncebox_dead_letter WHERE number = ?1;
