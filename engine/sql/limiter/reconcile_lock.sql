-- Lock the shards of gates $1 that nobody holds. Returns those locked.
-- Index: the buckets' primary key.
-- Race: admits, credits and other sweeps hold shards. SKIP LOCKED: a key of which one shard is missing waits for the
-- next sweep.
SELECT
    b.key, b.shard
FROM gen_durable_buckets AS b
WHERE b.kind = 'conc' AND b.key = ANY ($1::text[])
ORDER BY b.key, b.shard
FOR UPDATE OF b SKIP LOCKED
