-- By number, whatever the planner thinks of the index that begins with the scope.
SELECT number, attributes, payload FROM oncebox_message NOT INDEXED
WHERE scope = ?1 AND channel = ?2 AND type = ?3 AND received_at >= ?4 AND number > ?5
ORDER BY number LIMIT ?6;
