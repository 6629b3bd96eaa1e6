-- Count ended children off their parents, $1 holding one parent id per child that ended: a parent is changed once,
-- whatever the number of its children in the batch. Returns the queues of the parents that woke.
-- Index: primary key.
-- Race: two flushes end children of one parent. The parents are locked, in id order with all other rows of the batch,
-- by the flush's first statement; the count is read and written on the row, never carried.
WITH ended AS MATERIALIZED (
    SELECT
        e.parent_id,
        count(*)::integer AS children
    FROM unnest($1::bigint[]) AS e (parent_id)
    GROUP BY e.parent_id
)

UPDATE gen_durable AS g
SET
    children_pending = g.children_pending - e.children,
    status = CASE
        WHEN g.status = 'awaiting_children' AND g.children_pending = e.children THEN 'runnable'
        ELSE g.status
    END,
    updated_at = now()
FROM ended AS e
WHERE g.id = e.parent_id
RETURNING g.id, CASE WHEN g.status = 'runnable' AND g.children_pending = 0 THEN g.queue END
