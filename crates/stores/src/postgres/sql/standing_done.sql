SELECT EXISTS (SELECT FROM oncebox.finished WHERE number = $1 AND fence = $2)
