-- One that was leased and started has died: it would not be due otherwise.
UPDATE oncebox_delivery SET state = 'leased', fence = fence + 1, holder = ?3, due_at = ?4,
    was_due = CASE WHEN state = 'leased' THEN was_due ELSE due_at END,
    deaths = deaths + (state = 'leased' AND started),
    attempts = attempts + (number IN (SELECT value FROM json_each(?2))),
    started = number IN (SELECT value FROM json_each(?2))
WHERE number IN (SELECT value FROM json_each(?1));
