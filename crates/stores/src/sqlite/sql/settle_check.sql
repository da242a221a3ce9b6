SELECT count(*) FROM oncebox_relay_cursor
WHERE sink = ?1 AND holder IS NOT NULL
    AND (shard, fence) IN (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?2));
