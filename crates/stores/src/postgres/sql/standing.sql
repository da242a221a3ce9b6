SELECT state, fence FROM oncebox.delivery WHERE number = $1 FOR UPDATE
