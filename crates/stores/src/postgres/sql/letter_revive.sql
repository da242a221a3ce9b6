-- Its place in the lane is decided next. What it died of is kept until it is done.
UPDATE oncebox.delivery
SET state = 'parked', attempts = 0, deaths = 0, ended_at = NULL
WHERE number = $1 AND state = 'dead'
