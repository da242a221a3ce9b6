-- Its place in the lane is decided next.
UPDATE oncebox_delivery SET state = 'parked', generation = generation + 1, attempts = 0, deaths = 0, ended_at = NULL
WHERE number = ?1 AND state = 'done';
