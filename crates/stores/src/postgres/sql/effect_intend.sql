WITH mine AS MATERIALIZED (
    SELECT number, generation
    FROM oncebox.delivery
    WHERE number = $1 AND fence = $2 AND lease_until IS NOT NULL
    FOR NO KEY UPDATE
), intended AS (
    INSERT INTO oncebox.effect (delivery, generation, name, intended_at)
    SELECT number, generation, $3, coalesce($4, clock_timestamp()) FROM mine
    ON CONFLICT DO NOTHING
)
SELECT (
    SELECT e.result
    FROM oncebox.effect AS e
    WHERE e.delivery = mine.number AND e.generation = mine.generation AND e.name = $3
)
FROM mine
