DELETE FROM oncebox.dead_letter WHERE number = $1
