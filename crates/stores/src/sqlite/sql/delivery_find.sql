-- The body that the handler has, or had, under this key.
SELECT digest FROM (
    SELECT digest, 0 AS place FROM oncebox_delivery
    WHERE scope = ?1 AND handler = ?2 AND tenant = ?3 AND key_source = ?4 AND key_id = ?5
    UNION ALL
    SELECT digest, 1 FROM oncebox_marker
    WHERE tenant = ?3 AND handler = ?6 AND source = ?4 AND id = ?5)
ORDER BY place LIMIT 1;
