-- The first statement of a commit with effects: hold the rows of all its executions. A statement of its own, so that
-- the snapshot of the next one is taken when all locks are held: the versions, markers and trace indices it reads are
-- then the last ones.
-- Index: primary key, one probe per execution.
-- Race: two batches with the same executions. Both lock in id order, so the later one waits and never in a circle.
-- FOR NO KEY UPDATE is what the update takes; a stronger lock would only stand in the way of readers with foreign keys.
SELECT count(*) FROM (
    SELECT e.id
    FROM executions AS e
    WHERE e.id = any($1::text[])
    ORDER BY e.id
    FOR NO KEY UPDATE
) AS held
