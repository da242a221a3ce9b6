UPDATE oncebox_delivery SET state = 'discarded', ended_at = ?2
WHERE number = ?1 AND state = 'dead'
RETURNING scope, handler, tenant, lane;
