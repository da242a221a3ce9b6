DELETE FROM oncebox_delivery WHERE number IN (
    SELECT number FROM oncebox_delivery
    WHERE scope = ?5 AND handler = ?4 AND state IN ('done', 'discarded') AND ended_at < ?3 - ?1
    ORDER BY ended_at, number LIMIT ?2);
