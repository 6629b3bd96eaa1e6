-- Wake up to $1 parked rows whose deadline has passed: runnable, deadline cleared, awaits and attempt kept. A wake, not
-- a failure. Returns id, queue, and the transaction.
-- Index: gen_durable_await_deadline, expired entries only.
-- Race: a delivery or a flush has the row: skipped. One that committed since the snapshot is seen, because the lock
-- re-evaluates the predicate on the newest version.
WITH expired AS MATERIALIZED (
    SELECT g.ctid AS tid
    FROM gen_durable AS g
    WHERE g.status = 'awaiting_signal' AND g.await_deadline IS NOT NULL AND g.await_deadline <= now()
    ORDER BY g.await_deadline
    LIMIT $1::bigint
    FOR NO KEY UPDATE OF g SKIP LOCKED
)

UPDATE gen_durable AS g
SET
    status = 'runnable',
    await_deadline = NULL,
    updated_at = now()
FROM expired AS e
WHERE g.ctid = e.tid
RETURNING g.id, g.queue, pg_current_xact_id()::text
