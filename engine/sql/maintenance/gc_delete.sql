-- Delete the rows of $1 that are terminal and have no children. Returns id and the transaction.
-- Index: primary key, also for the re-join, and the status as text, lest a plan that was made when there was next to
-- nothing read all of gen_durable_gc; the children's probe and the foreign key's own look for children ride
-- gen_durable_parent, the cascades the primary key of signal receipts and signals_target.
-- Race: another collector has the row, or a signal's foreign key check shares it: skipped. This statement waits for
-- nobody. A bare DELETE would wait, in the order of its plan: two collectors with one page and two plans would wait for
-- each other (docs/findings.md, "Collectors deadlock"). FOR UPDATE, for that is the lock a DELETE takes: a weaker one
-- would be raised while it is held, and wait.
-- The foreign key sets the parent of a deleted row's children to null, and waits for their locks too. So a row with
-- children is left for a later sweep; a terminal row gets no new ones.
WITH doomed AS MATERIALIZED (
    SELECT g.id
    FROM gen_durable AS g
    LEFT JOIN LATERAL (
        SELECT true AS stays
        FROM gen_durable AS c
        WHERE c.parent_id = g.id
        LIMIT 1
    ) AS child ON true
    WHERE g.id = ANY ($1::bigint[]) AND g.status::text IN ('done', 'failed') AND child.stays IS NULL
    ORDER BY g.id
    FOR UPDATE OF g SKIP LOCKED
)

DELETE FROM gen_durable AS g
USING doomed AS d
WHERE g.id = d.id
RETURNING g.id, pg_current_xact_id()::text
