UPDATE oncebox_delivery SET replaced_by = ?2 WHERE number = ?1;
