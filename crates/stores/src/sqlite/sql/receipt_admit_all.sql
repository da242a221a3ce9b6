-- ?1 has scope, key and fingerprint of each, one after the other, ?2 the numbers.
INSERT OR REPLACE INTO oncebox_receipt (
    scope, key, fingerprint, state, token, lease_until, admitted_at, expires_at
) SELECT
    substr(?1, 1 + 96 * asked.key, 32), substr(?1, 33 + 96 * asked.key, 32), substr(?1, 65 + 96 * asked.key, 32),
    'in_flight', asked.value ->> 0, asked.value ->> 1, asked.value ->> 2, asked.value ->> 3
FROM json_each(?2) AS asked;
