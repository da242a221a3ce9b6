UPDATE oncebox_delivery
SET state = 'done', ended_at = ?3, started = 0, holder = NULL, code = NULL, reason = NULL
WHERE number = ?1 AND fence = ?2 AND state = 'leased'
RETURNING scope, handler, tenant, lane;
