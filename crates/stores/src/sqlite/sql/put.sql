-- An id that still waits in the schedule is taken too.
INSERT INTO oncebox_outbox (
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, created_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
    coalesce(?20, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
WHERE NOT EXISTS (SELECT 1 FROM oncebox_scheduled WHERE tenant = ?5 AND source = ?2 AND id = ?1)
ON CONFLICT (tenant, source, id) DO NOTHING;
