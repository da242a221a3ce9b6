DELETE FROM oncebox_scheduled WHERE (tenant, source, id) IN (
    SELECT tenant, source, id FROM oncebox_scheduled
    WHERE due_at <= ?1
    ORDER BY due_at, tenant, source, id
    LIMIT ?2);
