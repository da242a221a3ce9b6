DELETE FROM oncebox.relay_member WHERE sink = $1 AND holder = $2
