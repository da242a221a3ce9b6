INSERT INTO oncebox.migration (version, name, checksum) VALUES ($1, $2, $3)
