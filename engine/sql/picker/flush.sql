-- Commit a batch of outcomes: one guarded UPDATE, whatever the batch's size. Returns the claims whose outcome committed
-- and the transaction that did it; a claim that is absent is stale and changed nothing.
-- Index: primary key, one probe per row.
-- Race: the lease ran out and the row was reaped, perhaps claimed again. locked_by names one claim, not one worker,
-- so the guard fails even when the same node claimed the row again (docs/findings.md, "a worker is not a claim").
-- Locks wait here and in release, in id order; everything else that locks instance rows skips. All rows are locked
-- before the first is changed: `lock_all` reads the whole of `owned` before the join can yield a row. A changed row makes
-- a claim of its key wait at the arbiter. Were this statement to wait after that, for a row that this claim holds (it
-- keeps the lock on a row that failed its recheck), the two would wait for each other.
WITH outcome AS MATERIALIZED (
    SELECT o.*
    FROM unnest(
        $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::double precision[]
    ) AS o (id, claim, kind, step, state, result, error, delay_ms)
),

owned AS MATERIALIZED (
    SELECT
        g.id,
        o.claim, o.kind, o.step, o.state, o.result, o.error, o.delay_ms
    FROM gen_durable AS g
    INNER JOIN outcome AS o ON g.id = o.id AND g.locked_by = o.claim
    WHERE g.status = 'executing'
    ORDER BY g.id
    FOR NO KEY UPDATE OF g
)

UPDATE gen_durable AS g
SET
    status = CASE o.kind
        WHEN 'done' THEN 'done'
        WHEN 'stop' THEN 'failed'
        ELSE 'runnable'
    END::durable_status,
    step = coalesce(o.step, g.step),
    state = coalesce(o.state::jsonb, g.state),
    attempt = CASE o.kind WHEN 'next' THEN 0 WHEN 'retry' THEN least(g.attempt, 2147483646) + 1 ELSE g.attempt END,
    result = coalesce(o.result::jsonb, g.result),
    last_error = coalesce(o.error, g.last_error),
    eligible_at = CASE o.kind
        WHEN 'retry' THEN now() + o.delay_ms * interval '1 millisecond'
        ELSE g.eligible_at
    END,
    locked_by = NULL,
    lease_expires_at = NULL,
    concurrency_shard = NULL,
    updated_at = now()
FROM owned AS o
CROSS JOIN (SELECT count(*) FROM owned) AS lock_all
WHERE g.id = o.id AND g.locked_by = o.claim AND g.status = 'executing'
RETURNING g.id, o.claim, pg_current_xact_id()::text
