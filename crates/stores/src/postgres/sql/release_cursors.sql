UPDATE oncebox.relay_cursor SET holder = NULL, lease_until = NULL WHERE sink = $1 AND holder = $2
