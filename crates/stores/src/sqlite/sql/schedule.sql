-- An id that is in the log already is taken too.
INSERT INTO oncebox_scheduled (
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, due_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20
WHERE NOT EXISTS (SELECT 1 FROM oncebox_outbox WHERE tenant = ?5 AND source = ?2 AND id = ?1)
ON CONFLICT (tenant, source, id) DO NOTHING;
