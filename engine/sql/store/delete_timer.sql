-- A timer was fired.
-- Index: primary key.
-- Race: it was re-armed since it was read. Its fire_at is another then, and it stays.
DELETE FROM timers
WHERE execution_id = $1::text AND path = $2::text AND fire_at = $3::double precision
