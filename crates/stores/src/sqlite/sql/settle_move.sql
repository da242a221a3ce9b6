-- ?4 is [[shard, fence], ...]; one that is not ours any more and none of them moves.
UPDATE oncebox_relay_cursor
SET position = ?2, holes = ?3, moved_at = coalesce(?5, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
WHERE sink = ?1 AND holder IS NOT NULL
    AND (shard, fence) IN (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?4))
    AND json_array_length(?4) = (
        SELECT count(*) FROM oncebox_relay_cursor AS held
        WHERE held.sink = ?1 AND held.holder IS NOT NULL AND (held.shard, held.fence) IN (
            SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?4)));
