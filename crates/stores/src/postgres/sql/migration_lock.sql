SELECT pg_advisory_xact_lock(hashtextextended('oncebox migrate ' || $1, 0))
