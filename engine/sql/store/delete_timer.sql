-- A timer was fired.
-- Index: primary key.
-- Race: it was re-armed since it was read. Where its fire_at is another, it stays; where it is the same, it goes, and
-- only a commit of the version that was read could have told (engine/relay/firing.py).
DELETE FROM timers
WHERE execution_id = $1::text AND path = $2::text AND fire_at = $3::double precision
