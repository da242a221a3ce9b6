-- Why a relay's destination is unusable, for people; null while all is well.
ALTER TABLE oncebox.relay_member ADD COLUMN outage text;
