-- Looks where take_suspects looks.
SELECT EXISTS (
    SELECT FROM oncebox.delivery AS r
    WHERE r.scope = $1 AND r.handler = ANY ($2) AND r.state = 'ready' AND r.deaths > 0
        AND r.due_at <= coalesce($3, statement_timestamp())
        AND (r.lease_until IS NULL OR r.lease_until <= coalesce($3, statement_timestamp()))
) OR EXISTS (
    SELECT
    FROM unnest($2::text[]) AS want (handler)
    CROSS JOIN LATERAL (
        SELECT f.lease_until, f.started
        FROM oncebox.delivery AS f
        WHERE f.scope = $1 AND f.handler = want.handler AND f.state = 'ready'
            AND f.due_at <= coalesce($3, statement_timestamp())
        ORDER BY f.due_at, f.number
        LIMIT 1000
    ) AS front
    WHERE front.started AND front.lease_until <= coalesce($3, statement_timestamp())
)
