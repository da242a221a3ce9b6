SELECT
    (SELECT count(*) FROM (SELECT 1 FROM oncebox_outbox LIMIT ?1)),
    (SELECT count(*) FROM (SELECT 1 FROM oncebox_scheduled LIMIT ?1)),
    (SELECT count(*) FROM (SELECT 1 FROM oncebox_marker LIMIT ?1)),
    min(?1, (SELECT count(*) FROM (SELECT 1 FROM oncebox_dead_letter LIMIT ?1))
        + (SELECT count(*) FROM (SELECT 1 FROM oncebox_delivery WHERE state = 'dead' LIMIT ?1)));
