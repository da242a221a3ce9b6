-- A clock that stands still during the statement is one the index can be searched by.
DELETE FROM oncebox.marker
WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM oncebox.marker
    WHERE handler = $4 AND processed_at < coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
    ORDER BY processed_at
    LIMIT $2
))
