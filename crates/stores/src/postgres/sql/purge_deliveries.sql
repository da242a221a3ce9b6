-- What is done, and what a person has given up. Somebody may be replaying one of them, and has it locked then.
WITH old AS MATERIALIZED (
    SELECT both_kinds.number
    FROM (
        SELECT * FROM (
            SELECT number, ended_at
            FROM oncebox.finished
            WHERE scope = $4 AND handler = $5
                AND ended_at < coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
            ORDER BY ended_at
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        ) AS done
        UNION ALL
        SELECT * FROM (
            SELECT number, ended_at
            FROM oncebox.delivery
            WHERE scope = $4 AND handler = $5 AND state = 'discarded'
                AND ended_at < coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
            ORDER BY ended_at
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        ) AS discarded
    ) AS both_kinds
    ORDER BY both_kinds.ended_at
    LIMIT $2
), done AS (
    DELETE FROM oncebox.finished
    WHERE number = ANY (ARRAY(SELECT number FROM old))
    RETURNING number
), discarded AS (
    DELETE FROM oncebox.delivery
    WHERE number = ANY (ARRAY(SELECT number FROM old)) AND state = 'discarded'
    RETURNING number
), effects AS (
    DELETE FROM oncebox.effect
    WHERE delivery = ANY (ARRAY(SELECT number FROM old))
)
SELECT number FROM done
UNION ALL
SELECT number FROM discarded
