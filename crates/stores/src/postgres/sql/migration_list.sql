SELECT version, name, checksum, applied_at FROM oncebox.migration ORDER BY version
