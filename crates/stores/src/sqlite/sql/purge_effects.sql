-- Before the deliveries they belong to: foreign keys may be off on a pool of the caller's own.
DELETE FROM oncebox_effect WHERE delivery IN (
    SELECT number FROM oncebox_delivery
    WHERE scope = ?5 AND handler = ?4 AND state IN ('done', 'discarded') AND ended_at < ?3 - ?1
    ORDER BY ended_at, number LIMIT ?2);
