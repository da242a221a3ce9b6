-- The first that waits becomes ready, unless another of its lane may run, or one in front of it is stuck.
UPDATE oncebox.delivery AS d
SET state = 'ready', due_at = coalesce($5, clock_timestamp())
FROM (
    SELECT DISTINCT l.scope, l.handler, l.tenant, l.lane
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS l (scope, handler, tenant, lane)
) AS lane
CROSS JOIN LATERAL (
    SELECT w.number
    FROM oncebox.delivery AS w
    WHERE w.scope = lane.scope AND w.handler = lane.handler AND w.tenant = lane.tenant AND w.lane = lane.lane
        AND w.state = 'behind'
    ORDER BY w.number
    LIMIT 1
) AS head
WHERE d.number = head.number AND NOT EXISTS (
    SELECT FROM oncebox.delivery AS runs
    WHERE runs.scope = lane.scope AND runs.handler = lane.handler AND runs.tenant = lane.tenant
        AND runs.lane = lane.lane AND runs.state = 'ready'
) AND NOT EXISTS (
    SELECT FROM oncebox.delivery AS stuck
    WHERE stuck.scope = lane.scope AND stuck.handler = lane.handler AND stuck.tenant = lane.tenant
        AND stuck.lane = lane.lane AND stuck.state IN ('parked', 'dead') AND stuck.number < head.number
)
