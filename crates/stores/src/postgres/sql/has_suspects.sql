SELECT EXISTS (
    SELECT FROM oncebox.delivery AS r
    WHERE r.scope = $1 AND r.handler = ANY ($2) AND r.state = 'ready' AND r.deaths > 0
        AND r.due_at <= coalesce($3, statement_timestamp())
) OR EXISTS (
    SELECT FROM oncebox.delivery AS l
    WHERE l.scope = $1 AND l.handler = ANY ($2) AND l.state = 'leased' AND (l.started OR l.deaths > 0)
        AND l.due_at <= coalesce($3, statement_timestamp())
)
