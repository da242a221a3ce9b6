-- The database's clock in microseconds, asked once so that a whole transaction agrees on it.
SELECT CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER);
