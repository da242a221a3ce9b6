-- Its place in the lane is decided next.
UPDATE oncebox.delivery
SET state = 'parked', attempts = 0, deaths = 0, ended_at = NULL, generation = generation + 1
WHERE number = $1 AND state = 'done'
