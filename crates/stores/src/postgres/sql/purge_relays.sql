DELETE FROM oncebox.relay_member
WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM oncebox.relay_member
    WHERE seen_until < coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
    LIMIT $2
))
