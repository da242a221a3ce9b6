-- How far the log goes, so that a reader of few shards does not pass the rows of others again.
SELECT max(position) FROM oncebox_outbox;
