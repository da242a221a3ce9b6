INSERT OR REPLACE INTO oncebox_receipt (
    scope, key, fingerprint, state, token, lease_until, admitted_at, expires_at
) VALUES (?1, ?2, ?3, 'in_flight', ?4, ?5, ?6, ?7);
