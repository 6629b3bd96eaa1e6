-- Commit a batch of outcomes: one guarded UPDATE, whatever the batch's size. Returns the claims whose outcome
-- committed, the transaction that did it, and what the riders and the caller go on with: the gate slot that a row gave
-- up, the parent of a row that ended. A claim that is absent is stale and changed nothing.
-- Index: primary key, one probe per row and per parent. A session may keep a plan from when there was next to nothing
-- (docs/findings.md, "A plan for an empty queue"), so it is left no choice: OFFSET 0 keeps a probe a probe, the ids to
-- be locked come as an array, and the status is tested where, or as what, no partial index can answer for it.
-- Race 1: the lease ran out and the row was reaped, perhaps claimed again. locked_by names one claim, not one worker,
-- so the guard fails even when the same node claimed the row again (docs/findings.md, "a worker is not a claim").
-- Race 2: an inline continuation commits and keeps its claim; one that was sent twice, the first time into a
-- connection that seemed dead, could arrive after its successors. `turn` counts a claim's continuations and fences
-- them.
-- Race 3: a signal's delivery locks its target too, so it stands before or after this statement, and the recheck of a
-- park, the next statement of the transaction, sees every delivery that stands before.
-- Locks wait here, in flush_lock and in release, in id order; everything else that locks several instance rows skips.
-- All rows are locked before the first is changed, the parents that the join will change among them: the count,
-- computed once, reads the whole of `locked` before the join can yield a row. A changed row makes a claim of its key
-- wait at the arbiter and an insert of its identity at the unique index. Were this transaction to wait after that, for
-- a row that one of those holds (a lock stays on a row that failed its recheck), the two would wait for each other.
WITH outcome AS MATERIALIZED (
    SELECT o.*
    FROM unnest(
        $1::bigint[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::double precision[], $10::boolean[], $11::text[], $12::double precision[], $13::boolean[], $14::text[],
        $15::boolean[], $16::text[], $17::integer[]
    ) AS o (
        id, claim, turn, kind, step, state, result, error,
        ms, sets_rate, rate_limit, weight, sets_key, concurrency_key,
        gated, awaits, children
    )
),

named AS MATERIALIZED (
    SELECT
        g.id,
        CASE WHEN o.kind IN ('done', 'stop') THEN g.parent_id END AS parent_id
    FROM outcome AS o
    CROSS JOIN LATERAL (
        SELECT
            g.id,
            g.status,
            g.locked_by,
            g.parent_id
        FROM gen_durable AS g
        WHERE g.id = o.id
        OFFSET 0
    ) AS g
    WHERE g.status = 'executing' AND g.locked_by = o.claim
),

wanted AS MATERIALIZED (
    SELECT id FROM named
    UNION
    SELECT parent_id FROM named
),

locked AS MATERIALIZED (
    SELECT
        g.id,
        g.status,
        g.locked_by,
        g.turn,
        g.concurrency_key,
        g.concurrency_shard
    FROM gen_durable AS g
    WHERE g.id = ANY (array(SELECT w.id FROM wanted AS w))
    ORDER BY g.id
    FOR NO KEY UPDATE OF g
),

owned AS MATERIALIZED (
    SELECT
        o.*,
        g.concurrency_key AS held_key,
        g.concurrency_shard AS held_shard,
        o.sets_key AND NOT coalesce(o.concurrency_key = g.concurrency_key, false) AS rekeyed,
        CASE o.kind
            WHEN 'done' THEN 'done'
            WHEN 'stop' THEN 'failed'
            WHEN 'await' THEN 'awaiting_signal'
            WHEN 'childs' THEN CASE WHEN o.children > 0 THEN 'awaiting_children' ELSE 'runnable' END
            WHEN 'continue' THEN 'executing'
            ELSE 'runnable'
        END::durable_status AS status
    FROM locked AS g
    INNER JOIN outcome AS o ON g.id = o.id AND g.locked_by = o.claim
    WHERE g.status = 'executing'
        AND g.turn = o.turn
)

UPDATE gen_durable AS g
SET
    status = o.status,
    step = coalesce(o.step, g.step),
    state = coalesce(o.state::jsonb, g.state),
    attempt = CASE o.kind
        WHEN 'next' THEN 0 WHEN 'retry' THEN least(g.attempt, 2147483646) + 1
        WHEN 'await' THEN 0 WHEN 'childs' THEN 0 WHEN 'continue' THEN 0
        ELSE g.attempt
    END,
    result = coalesce(o.result::jsonb, g.result),
    last_error = coalesce(o.error, g.last_error),
    eligible_at = CASE o.kind
        WHEN 'retry' THEN now() + o.ms * interval '1 millisecond'
        ELSE g.eligible_at
    END,
    locked_by = CASE WHEN o.kind = 'continue' THEN g.locked_by END,
    lease_expires_at = CASE WHEN o.kind = 'continue' THEN now() + o.ms * interval '1 millisecond' END,
    turn = CASE WHEN o.kind = 'continue' THEN g.turn + 1 ELSE 0 END,
    rate_limit = CASE WHEN o.sets_rate THEN o.rate_limit ELSE g.rate_limit END,
    weight = CASE WHEN o.sets_rate THEN o.weight ELSE g.weight END,
    concurrency_key = CASE WHEN o.sets_key THEN o.concurrency_key ELSE g.concurrency_key END,
    -- A continuation never enters the arbiter: its key stays, or goes, or is a gate's and gets a provisional shard.
    concurrency_shard = CASE
        WHEN o.kind <> 'continue' THEN NULL
        WHEN NOT o.rekeyed THEN g.concurrency_shard
        WHEN o.gated THEN -1
    END,
    awaits = CASE o.kind
        WHEN 'await' THEN o.awaits::text[]
        WHEN 'retry' THEN g.awaits
    END,
    await_deadline = CASE WHEN o.kind = 'await' THEN now() + o.ms * interval '1 millisecond' END,
    children_pending = CASE WHEN o.kind = 'childs' THEN o.children ELSE g.children_pending END,
    -- An identity whose scope a park leaves is given up for good, never retaken when the row wakes.
    correlation_scope = CASE
        WHEN o.kind IN ('await', 'childs') AND o.status <> ALL (g.correlation_scope) THEN '{}'
        ELSE g.correlation_scope
    END,
    updated_at = now()
FROM owned AS o
WHERE g.id = o.id AND g.locked_by = o.claim AND g.status::text = 'executing'
    AND (SELECT count(*) FROM locked) > 0
RETURNING
    g.id,
    o.claim,
    pg_current_xact_id()::text,
    CASE WHEN o.held_shard >= 0 AND (o.kind <> 'continue' OR o.rekeyed) THEN o.held_key END,
    o.held_shard,
    CASE WHEN o.kind IN ('done', 'stop') THEN g.parent_id END
