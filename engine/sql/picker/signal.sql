-- Deliver a signal to the live instance of id $1, or of identity $2: name $3, payload $4, dedup key $5. Returns the
-- target, the signal, and the queue to poke where it woke the target; no row where there is no live target, no signal
-- where the dedup key was used before, consumed or not.
-- Index: primary key or gen_durable_correlation for the target; signal_receipts' key.
-- Race 1: a terminal outcome. The target is locked first, and its status then looked at again; a delivery that only
-- read it would answer "delivered" for a row that had already ended (docs/findings.md, "a signal to the dead").
-- Race 2: a park. Whoever locks the row first: this statement finds it parked, or the park's recheck finds the signal.
-- The flip stands in a CASE. In the WHERE it would be tested on the snapshot's version, find a row that was not parked
-- yet, and pass over it.
-- Race 3: one delivery made twice. The receipt decides; both hold the target's lock in turn.
-- It locks one instance row and then waits for nobody.
WITH target AS MATERIALIZED (
    SELECT
        g.id,
        -- Read under the lock that this takes, on the version that the lock found.
        g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits) AS parked
    FROM gen_durable AS g
    WHERE
        g.id = coalesce($1::bigint, (SELECT k.id FROM gen_durable AS k WHERE k.correlation_guard = $2::text))
        AND ($2::text IS NULL OR g.correlation_guard = $2::text)
        AND g.status IN ('runnable', 'executing', 'awaiting_signal', 'awaiting_children')
    FOR NO KEY UPDATE OF g
),

receipt AS (
    INSERT INTO signal_receipts (target_id, dedup_key)
    SELECT
        t.id,
        $5::text
    FROM target AS t
    WHERE $5::text IS NOT NULL
    ON CONFLICT (target_id, dedup_key) DO NOTHING
    RETURNING target_id
),

inbox AS (
    INSERT INTO signals (target_id, name, payload, dedup_key)
    SELECT
        t.id,
        $3::text,
        $4::text::jsonb,
        $5::text
    FROM target AS t
    WHERE $5::text IS NULL OR EXISTS (SELECT FROM receipt)
    ON CONFLICT (target_id, dedup_key) DO NOTHING
    RETURNING id, target_id
),

wake AS (
    UPDATE gen_durable AS g
    SET
        status = CASE
            WHEN g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits) THEN 'runnable'
            ELSE g.status
        END,
        await_deadline = CASE
            WHEN g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits) THEN NULL
            ELSE g.await_deadline
        END,
        updated_at = CASE
            WHEN g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits) THEN now()
            ELSE g.updated_at
        END
    FROM inbox AS i
    WHERE g.id = i.target_id
    RETURNING g.queue
)

SELECT
    t.id,
    i.id AS signal,
    CASE WHEN t.parked THEN w.queue END AS woken
FROM target AS t
LEFT JOIN inbox AS i ON true
LEFT JOIN wake AS w ON true
