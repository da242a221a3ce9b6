-- One line per column, index and constraint. NOT NULL constraints are left out: newer servers list them as
-- constraints of their own, and the column says it already.
WITH ours AS (
    SELECT c.oid, c.relname
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND c.relname IN (
        'outbox', 'scheduled', 'relay_cursor', 'relay_member', 'parked', 'marker', 'entry', 'dead_letter',
        'message', 'delivery', 'finished', 'effect', 'handler', 'broom', 'receipt',
        'migration')
)
SELECT line COLLATE "C" FROM (
    SELECT format('column %s.%s %s%s%s%s%s', t.relname, a.attname,
        pg_catalog.format_type(a.atttypid, a.atttypmod),
        CASE WHEN k.collname IS NOT NULL AND k.collname <> 'default' THEN ' collate ' || k.collname END,
        CASE WHEN a.attnotnull THEN ' not null' END,
        CASE WHEN a.attidentity = 'a' THEN ' identity always' WHEN a.attidentity = 'd' THEN ' identity' END,
        CASE WHEN a.attgenerated <> '' THEN ' generated ' WHEN d.adbin IS NOT NULL THEN ' default ' END
            || pg_catalog.pg_get_expr(d.adbin, d.adrelid)) AS line
    FROM ours AS t
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_catalog.pg_collation AS k ON k.oid = a.attcollation
    LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    SELECT 'index ' || pg_catalog.pg_get_indexdef(i.indexrelid, 0, true)
        || CASE WHEN i.indisvalid THEN '' ELSE ' (invalid)' END
    FROM ours AS t
    JOIN pg_catalog.pg_index AS i ON i.indrelid = t.oid
    UNION ALL
    SELECT format('constraint %s.%s %s', t.relname, k.conname, pg_catalog.pg_get_constraintdef(k.oid, true))
    FROM ours AS t
    JOIN pg_catalog.pg_constraint AS k ON k.conrelid = t.oid AND k.contype <> 'n'
) AS lines
ORDER BY 1
