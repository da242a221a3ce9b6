-- Written seldom: to be late by ten seconds parks nobody.
INSERT INTO oncebox.handler AS h (scope, handler, seen_at)
SELECT $1, known.handler, coalesce($3, clock_timestamp())
FROM (SELECT DISTINCT handler FROM unnest($2::text[]) AS k (handler) ORDER BY handler) AS known
WHERE NOT EXISTS (
    SELECT FROM oncebox.handler AS seen
    WHERE seen.scope = $1 AND seen.handler = known.handler
        AND seen.seen_at > coalesce($3, statement_timestamp()) - interval '10 seconds'
)
ON CONFLICT (scope, handler) DO UPDATE SET seen_at = greatest(h.seen_at, excluded.seen_at)
