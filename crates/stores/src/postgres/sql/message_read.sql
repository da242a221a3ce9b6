SELECT scope, tenant, payload, attributes FROM oncebox.message WHERE number = $1
