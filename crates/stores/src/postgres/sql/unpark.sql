DELETE FROM oncebox.parked WHERE sink = $1 AND position = ANY ($2)
