-- The sweep, in its whole order: of timers that are due at one instant it takes some, and sorts none of them.
-- The stronger lock comes first: a sweep under way has one that lets an index be made and not be dropped, and wants one
-- that waits for either.
DROP INDEX timers_due;
CREATE INDEX timers_due ON timers (fire_at, execution_id, path);
