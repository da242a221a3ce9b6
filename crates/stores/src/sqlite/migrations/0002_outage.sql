-- Why a relay's destination is unusable, for people; null while all is well.
ALTER TABLE oncebox_relay_member ADD COLUMN outage TEXT;
