-- The sweep, in its whole order: of timers that are due at one instant it takes some, and sorts none of them.
CREATE INDEX timers_due_in_order ON timers (fire_at, execution_id, path);
DROP INDEX timers_due;
ALTER INDEX timers_due_in_order RENAME TO timers_due;
