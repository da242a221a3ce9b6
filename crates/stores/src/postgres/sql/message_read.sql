-- Locked, so that it is not purged before its new share is there.
SELECT scope, tenant, payload, attributes FROM oncebox.message WHERE number = $1 FOR KEY SHARE
