-- What a server must be to keep a promise: durable, and writable.
SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('transaction_read_only')
