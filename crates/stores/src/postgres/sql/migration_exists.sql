SELECT to_regclass('oncebox.migration') IS NOT NULL
