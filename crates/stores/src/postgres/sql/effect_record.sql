WITH mine AS MATERIALIZED (
    SELECT number, generation
    FROM oncebox.delivery
    WHERE number = $1 AND fence = $2 AND lease_until IS NOT NULL
    FOR NO KEY UPDATE
)
INSERT INTO oncebox.effect AS e (delivery, generation, name, intended_at, result)
SELECT number, generation, $3, clock_timestamp(), $4 FROM mine
ON CONFLICT (delivery, generation, name) DO UPDATE SET result = excluded.result
