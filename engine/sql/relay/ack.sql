-- Remove delivered outbox rows. Returns those that were there.
-- Index: the primary key, once to lock and once to remove.
-- Race: another relay delivered and removed some: those are gone already. Two that remove the same rows wait for each
-- other's in one order, that of seq: rows are locked before the first goes, and not in the order of a plan.
WITH held AS MATERIALIZED (
    SELECT o.seq
    FROM outbox AS o
    WHERE o.seq = ANY ($1::bigint[])
    ORDER BY o.seq
    FOR UPDATE
)

DELETE FROM outbox AS o
WHERE o.seq = ANY (array(SELECT h.seq FROM held AS h))
RETURNING o.seq
