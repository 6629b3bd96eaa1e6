-- Wake up to $1 instances whose wait for a signal has lasted too long: runnable, the deadline cleared, awaits and
-- attempt kept, for running out of time is no failure. Returns id, queue, and the transaction.
-- Index: gen_durable_await_deadline, expired entries only.
-- Race: a delivery has the row: skipped, it wakes the row itself or leaves it to the next sweep. One that woke the row
-- since the snapshot is seen, because the lock re-evaluates the predicate on the newest version; a row that parked
-- anew since then has a later deadline.
WITH expired AS MATERIALIZED (
    SELECT g.ctid AS tid
    FROM gen_durable AS g
    WHERE g.status = 'awaiting_signal' AND g.await_deadline IS NOT NULL AND g.await_deadline < now()
    ORDER BY g.await_deadline, g.id
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
