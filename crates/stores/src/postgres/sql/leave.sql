-- The last run to end takes the row with it.
DELETE FROM oncebox.entry WHERE tenant = $1 AND handler = $2 AND source = $3 AND id = $4 AND entries <= 1
