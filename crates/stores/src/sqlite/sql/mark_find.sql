SELECT digest, result FROM oncebox_marker WHERE tenant = ?1 AND handler = ?2 AND source = ?3 AND id = ?4;
