-- Sorted by place in the batch: positions follow the caller's order, and so do the returned rows.
INSERT INTO oncebox.outbox (
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, created_at
) SELECT
    m.id, m.source, m.type, m.schema_version, m.tenant, m.ordering_key, m.destination, m.subject,
    m.aggregate_type, m.content_type, m.data_schema, m.correlation_id, m.causation_id,
    m.idempotency_key, m.traceparent, m.tracestate, m.baggage, m.headers::jsonb, m.payload,
    coalesce($20, clock_timestamp())
FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::text[], $8::text[],
    $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
    $16::text[], $17::text[], $18::text[], $19::bytea[]
) WITH ORDINALITY AS m (
    id, source, type, schema_version, tenant, ordering_key, destination, subject, aggregate_type,
    content_type, data_schema, correlation_id, causation_id, idempotency_key, traceparent, tracestate,
    baggage, headers, payload, n
)
WHERE NOT EXISTS (
    SELECT 1 FROM oncebox.scheduled AS s WHERE s.tenant = m.tenant AND s.source = m.source AND s.id = m.id)
ORDER BY m.n
ON CONFLICT (id, source, tenant) DO NOTHING
RETURNING tenant, source, id
