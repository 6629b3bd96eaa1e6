-- Timers that are due, oldest first.
-- Index: timers_due, forward, from its start.
-- Race: one may be re-armed or disarmed right after: delete_timer matches fire_at.
SELECT t.execution_id, t.path, t.fire_at
FROM timers AS t
WHERE t.fire_at <= $1::double precision
ORDER BY t.fire_at, t.execution_id, t.path
LIMIT $2::integer
