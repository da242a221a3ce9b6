-- The state is looked at again: somebody may be replaying one of them.
DELETE FROM oncebox.delivery
WHERE state IN ('done', 'discarded') AND number = ANY (ARRAY(
    SELECT number
    FROM oncebox.delivery
    WHERE scope = $4 AND handler = $5 AND state IN ('done', 'discarded')
        AND ended_at < coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
    ORDER BY ended_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
))
