-- Few rows are ever here: one per handler that is running, or whose process died over a message that never came again.
DELETE FROM oncebox.entry
WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM oncebox.entry
    WHERE entered_at < coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
    LIMIT $2
))
