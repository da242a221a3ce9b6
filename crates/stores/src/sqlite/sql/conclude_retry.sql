UPDATE oncebox_delivery SET state = 'ready', due_at = ?3, deaths = 0, started = 0, holder = NULL,
    attempts = attempts - started
WHERE number = ?1 AND fence = ?2 AND state = 'leased';
