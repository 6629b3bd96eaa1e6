-- Take back up to $1 claims whose lease ran out: runnable at once, one attempt more. Returns id, the claim that lost
-- it, and the transaction.
-- Index: gen_durable_lease, expired entries only, and of those as many as the limit: it has the whole order, and the
-- instant is one that the planner does not know, for it takes executing and expired for independent, so that there
-- would be next to none, and then reads and sorts them all.
-- Race: a heartbeat or a flush has the row: skipped. One that committed since the snapshot is seen, because the lock
-- re-evaluates the predicate on the newest version.
WITH expired AS MATERIALIZED (
    SELECT
        g.ctid AS tid,
        g.locked_by AS claim
    FROM gen_durable AS g
    WHERE g.status = 'executing' AND g.lease_expires_at < (SELECT now())
    ORDER BY g.lease_expires_at, g.id
    LIMIT $1::bigint
    FOR NO KEY UPDATE OF g SKIP LOCKED
)

UPDATE gen_durable AS g
SET
    status = 'runnable',
    attempt = least(g.attempt, 2147483646) + 1,
    locked_by = NULL,
    lease_expires_at = NULL,
    concurrency_shard = NULL,
    updated_at = now()
FROM expired AS e
WHERE g.ctid = e.tid
RETURNING g.id, e.claim, pg_current_xact_id()::text
