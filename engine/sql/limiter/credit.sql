-- Give back the slots ($1 key, $2 shard) that transaction $3 freed: to the shard's debt first, then to its level.
-- Returns the shards that were changed.
-- Index: primary key, one probe per shard, in the form that picker/heartbeat has.
-- Race 1: reconcile has counted since that transaction committed, and has given the slot back already. A shard keeps
-- the snapshot of its last count: what that one saw is not given twice (docs/findings.md, "a slot given back twice").
-- Race 2: admits, other credits. Locks wait here, in (key, shard) order, all of them before the first change, as in
-- picker/release: two credits meet in one order. An admit passes over a shard that is held, changed or not.
WITH freed AS MATERIALIZED (
    SELECT
        f.key, f.shard, count(*)::double precision AS slots
    FROM unnest($1::text[], $2::smallint[]) AS f (key, shard)
    GROUP BY f.key, f.shard
),

due AS MATERIALIZED (
    SELECT
        b.key, b.shard, f.slots
    FROM (SELECT u.key, u.shard, u.slots FROM freed AS u ORDER BY u.key, u.shard) AS f
    CROSS JOIN LATERAL (
        SELECT
            b.key,
            b.shard
        FROM gen_durable_buckets AS b
        WHERE
            b.kind = 'conc' AND b.key = f.key AND b.shard = f.shard
            AND NOT pg_visible_in_snapshot($3::text::xid8, b.counted)
        FOR UPDATE OF b
    ) AS b
)

UPDATE gen_durable_buckets AS b
SET
    debt = greatest(0, b.debt - d.slots),
    available = least(b.capacity, b.available + greatest(0, d.slots - b.debt))
FROM due AS d
WHERE b.kind = 'conc' AND b.key = d.key AND b.shard = d.shard
    AND (SELECT count(*) FROM due) > 0
RETURNING b.key, b.shard
