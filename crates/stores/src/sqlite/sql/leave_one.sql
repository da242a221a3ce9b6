UPDATE oncebox_entry SET entries = entries - 1 WHERE tenant = ?1 AND handler = ?2 AND source = ?3 AND id = ?4;
