-- Give claims back untouched: runnable at once, attempt and eligible_at kept. Returns the claims given back, the
-- transaction, and the gate slots that their rows were stamped with; whether those were drawn, the caller knows.
-- Index: primary key, one probe per claim, in the form that heartbeat has.
-- Race: reaped and claimed by another in between; the guard fails and the row stays the other's.
-- Locks wait here, in id order, all of them before the first change, for the reason that flush gives. The count is
-- computed once; joined to, it was counted anew for each row.
WITH held AS MATERIALIZED (
    SELECT h.*
    FROM (
        SELECT u.id, u.claim
        FROM unnest($1::bigint[], $2::text[]) AS u (id, claim)
        ORDER BY u.id
    ) AS c
    CROSS JOIN LATERAL (
        SELECT
            g.id,
            g.locked_by AS claim,
            g.concurrency_key,
            g.concurrency_shard
        FROM gen_durable AS g
        WHERE g.id = c.id AND g.locked_by = c.claim AND g.status::text = 'executing'
        FOR NO KEY UPDATE OF g
    ) AS h
)

UPDATE gen_durable AS g
SET
    status = 'runnable',
    locked_by = NULL,
    lease_expires_at = NULL,
    concurrency_shard = NULL,
    updated_at = now()
FROM held AS h
WHERE g.id = h.id
    AND (SELECT count(*) FROM held) > 0
RETURNING
    g.id,
    h.claim,
    pg_current_xact_id()::text,
    CASE WHEN h.concurrency_shard >= 0 THEN h.concurrency_key END,
    h.concurrency_shard
