-- With the schema first in the path, definitions are printed without its name.
SELECT set_config('search_path', $1, true)
