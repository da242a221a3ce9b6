INSERT INTO oncebox_message (scope, channel, tenant, source, id, type, digest, received_at, attributes, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (scope, channel, tenant, source, id) DO NOTHING
RETURNING number;
