-- One that may run keeps the others of its lane back wherever it stands, one that is stuck those after it. Those
-- that wait keep nobody back: they wait for one of these. An amended one stands where the old one stood ($3).
UPDATE oncebox.delivery AS d
SET due_at = coalesce($2, clock_timestamp()), state = CASE
    WHEN EXISTS (
        SELECT FROM oncebox.delivery AS runs
        WHERE runs.scope = d.scope AND runs.handler = d.handler AND runs.tenant = d.tenant AND runs.lane = d.lane
            AND runs.state = 'ready'
    ) THEN 'behind'
    WHEN EXISTS (
        SELECT FROM oncebox.delivery AS stuck
        WHERE stuck.scope = d.scope AND stuck.handler = d.handler AND stuck.tenant = d.tenant
            AND stuck.lane = d.lane AND stuck.state IN ('parked', 'dead') AND stuck.number < coalesce($3, d.number)
    ) THEN 'behind'
    ELSE 'ready' END
WHERE d.number = ANY ($1) AND d.state = 'parked'
