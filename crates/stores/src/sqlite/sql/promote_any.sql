-- Asked without the write lock, so that an idle relay does not stand in any writer's way.
SELECT EXISTS (
    SELECT 1 FROM oncebox_scheduled
    WHERE due_at <= coalesce(?1, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)));
