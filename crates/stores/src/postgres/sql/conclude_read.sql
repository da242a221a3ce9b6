SELECT
    scope, handler, tenant, lane, started, attempts, code, reason, history, coalesce($3, clock_timestamp()) AS now
FROM oncebox.delivery
WHERE number = $1 AND fence = $2 AND lease_until IS NOT NULL
FOR UPDATE
