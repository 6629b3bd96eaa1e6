-- Wake the rows $1 that this flush parked although their inbox holds a signal that they await. $2 names the signals
-- that the parking steps were handed: they looked at those and parked all the same. Ids, not a watermark: ids commit
-- out of order. Returns the queues of those that woke.
-- Index: signals_target per row. OFFSET 0 keeps it a probe: joined, a plan from an empty inbox reads all inboxes.
-- Race: a delivery to a row that is parking. It waits for the row, and then sees it parked; or the park waited for it,
-- and this statement, whose snapshot is later than the lock, sees its signal.
-- A row that its own transaction has changed before has its foreign key checked anew: a child that wakes here takes
-- a KEY SHARE lock on its parent. Nobody in the engine bars that: FOR UPDATE is the collector's, on rows that have no
-- children.
WITH unseen AS MATERIALIZED (
    SELECT DISTINCT g.id
    FROM unnest($1::bigint[]) AS p (id)
    CROSS JOIN LATERAL (
        SELECT
            g.id,
            g.status,
            g.awaits
        FROM gen_durable AS g
        WHERE g.id = p.id
        OFFSET 0
    ) AS g
    CROSS JOIN LATERAL (
        SELECT s.id
        FROM signals AS s
        WHERE s.target_id = g.id AND s.name = ANY (g.awaits)
        OFFSET 0
    ) AS s
    WHERE
        g.status = 'awaiting_signal'
        AND NOT EXISTS (SELECT FROM unnest($2::bigint[]) AS h (id) WHERE h.id = s.id)
)

UPDATE gen_durable AS g
SET
    status = 'runnable',
    await_deadline = NULL,
    updated_at = now()
FROM unseen AS u
WHERE g.id = u.id
RETURNING g.queue
