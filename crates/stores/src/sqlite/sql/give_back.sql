UPDATE oncebox_delivery SET state = 'ready', holder = NULL, attempts = attempts - started, started = 0,
    due_at = coalesce(?2, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
WHERE number IN (SELECT json_extract(value, '$[0]') FROM json_each(?1)) AND state = 'leased'
    AND (number, fence) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?1));
