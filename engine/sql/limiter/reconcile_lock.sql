-- Lock the shards of the gates $1 to $2, both included, that nobody holds. Returns those locked.
-- Index: the buckets' primary key, one range. Not an array of keys: Postgres before 14 looks each row up in it one by
-- one, wherever the index is read by kind alone.
-- Race: admits, credits and other sweeps hold shards. SKIP LOCKED: a key of which one shard is missing waits for the
-- next sweep. A key made since the page was read is between them, and counted too.
SELECT
    b.key, b.shard
FROM gen_durable_buckets AS b
WHERE b.kind = 'conc' AND b.key >= $1::text AND b.key <= $2::text
ORDER BY b.key, b.shard
FOR UPDATE OF b SKIP LOCKED
