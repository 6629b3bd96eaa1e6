-- A timer was fired.
-- Index: primary key. + 0: timers_due would be ridden as well, through all timers of the same instant.
-- Race: it was re-armed since it was read. Its fire_at is another then, and it stays.
DELETE FROM timers
WHERE execution_id = $1::text AND path = $2::text AND fire_at + 0 = $3::double precision
