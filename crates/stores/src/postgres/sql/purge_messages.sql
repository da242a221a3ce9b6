-- Asked again now that they are locked: one may have been given to a handler a moment before.
DELETE FROM oncebox.message AS m
WHERE m.number = ANY ($1)
    AND NOT EXISTS (SELECT FROM oncebox.delivery AS d WHERE d.message = m.number)
    AND NOT EXISTS (SELECT FROM oncebox.finished AS f WHERE f.message = m.number)
