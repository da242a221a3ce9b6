INSERT INTO oncebox_handler (scope, handler, seen_at)
SELECT ?1, value, ?3 FROM json_each(?2) WHERE true
ON CONFLICT (scope, handler) DO UPDATE SET seen_at = excluded.seen_at
WHERE oncebox_handler.seen_at < excluded.seen_at - ?4;
