SELECT number, '', channel, handler, code, reason, attempts, died_at, died_at, 0, '[]', envelope, payload
FROM oncebox_dead_letter WHERE number = ?1;
