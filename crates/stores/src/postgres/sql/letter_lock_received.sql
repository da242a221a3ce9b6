SELECT
    coalesce(died_at < coalesce($3, clock_timestamp()) - $2::bigint * interval '1 microsecond', false) AS too_old,
    '' AS scope, channel, handler, tenant, NULL::text AS lane
FROM oncebox.dead_letter
WHERE number = $1
FOR UPDATE
