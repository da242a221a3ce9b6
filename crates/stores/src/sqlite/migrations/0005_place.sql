-- When a leased one was due: if its lease runs out, it comes before what was due later.
ALTER TABLE oncebox_delivery ADD COLUMN was_due INTEGER;
