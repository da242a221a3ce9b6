SELECT version, name, checksum, applied_at FROM oncebox_migration ORDER BY version;
