SELECT state FROM oncebox_delivery WHERE number = ?1 AND fence = ?2;
