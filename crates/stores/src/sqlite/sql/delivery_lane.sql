SELECT scope, handler, tenant, lane FROM oncebox_delivery WHERE number = ?1;
