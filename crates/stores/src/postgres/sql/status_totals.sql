SELECT
    (SELECT count(*) FROM (SELECT 1 FROM oncebox.outbox LIMIT $1) AS t),
    (SELECT count(*) FROM (SELECT 1 FROM oncebox.scheduled LIMIT $1) AS t),
    (SELECT count(*) FROM (SELECT 1 FROM oncebox.marker LIMIT $1) AS t),
    (SELECT count(*) FROM (
        (SELECT 1 FROM oncebox.dead_letter LIMIT $1)
        UNION ALL
        (SELECT 1 FROM oncebox.delivery WHERE state = 'dead' LIMIT $1)
        LIMIT $1) AS t)
