SELECT FROM pg_prepared_statements WHERE name = $1
