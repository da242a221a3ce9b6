SELECT EXISTS (SELECT 1 FROM oncebox_outbox WHERE tenant = ?1 AND source = ?2 AND id = ?3)
    OR EXISTS (SELECT 1 FROM oncebox_scheduled WHERE tenant = ?1 AND source = ?2 AND id = ?3);
