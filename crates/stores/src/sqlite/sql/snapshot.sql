-- Indexes that SQLite makes for constraints have no text; the constraint says it all.
SELECT name, sql FROM sqlite_schema
WHERE sql IS NOT NULL AND tbl_name IN (
    'oncebox_outbox', 'oncebox_scheduled', 'oncebox_relay_cursor', 'oncebox_relay_member',
    'oncebox_parked', 'oncebox_marker', 'oncebox_entry', 'oncebox_dead_letter', 'oncebox_message',
    'oncebox_delivery', 'oncebox_effect', 'oncebox_handler', 'oncebox_broom', 'oncebox_receipt',
    'oncebox_migration');
