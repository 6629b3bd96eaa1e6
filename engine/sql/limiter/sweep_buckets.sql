-- Put up to $1 rate keys in order: drop those whose configuration is gone, and those whose every shard is there and
-- has been left alone for burst / rate, by when it is full, as a key without rows is; never where the rate is 0. A key
-- whose number of shards was changed loses the ones too many and gets the missing ones, empty: tokens come from the
-- rate only.
-- Returns keys dropped, shards made, shards cut.
-- Index: the buckets' primary key, read whole.
-- Race: an admit has a shard, or has drawn on it since the snapshot. SKIP LOCKED, and the lock brings the newest
-- last_refill; a key of which one shard is missing waits for the next sweep.
WITH key AS MATERIALIZED (
    SELECT
        b.key, max(c.rate) AS rate, max(c.capacity) AS burst, max(c.shards) AS shards, count(*) AS stored
    FROM gen_durable_buckets AS b
    LEFT JOIN gen_durable_bucket_configs AS c ON c.kind = 'rate' AND c.name = split_part(b.key, ':', 1)
    WHERE b.kind = 'rate'
    GROUP BY b.key
    HAVING
        max(c.shards) IS NULL
        OR count(*) <> max(c.shards)
        OR max(b.shard) >= max(c.shards)
        OR (
            max(c.rate) > 0
            AND max(b.last_refill) < now() - max(c.capacity) / nullif(max(c.rate), 0) * interval '1 second'
        )
    ORDER BY b.key
    LIMIT $1::bigint
),

held AS MATERIALIZED (
    SELECT
        b.key, b.shard, b.last_refill, k.rate, k.burst, k.shards, k.stored
    FROM gen_durable_buckets AS b
    INNER JOIN key AS k ON b.key = k.key
    WHERE b.kind = 'rate'
    ORDER BY b.key, b.shard
    FOR UPDATE OF b SKIP LOCKED
),

whole AS MATERIALIZED (
    SELECT
        h.key, max(h.shards) AS shards, max(h.burst) AS burst,
        max(h.shards) IS NULL OR (
            max(h.rate) > 0
            AND count(DISTINCT h.shard) = max(h.shards)
            AND max(h.shard) < max(h.shards)
            AND max(h.last_refill) < now() - max(h.burst) / nullif(max(h.rate), 0) * interval '1 second'
        ) AS drop
    FROM held AS h
    GROUP BY h.key
    HAVING count(DISTINCT h.shard) = max(h.stored)
),

dropped AS (
    DELETE FROM gen_durable_buckets AS b
    USING whole AS w
    WHERE b.kind = 'rate' AND b.key = w.key AND (w.drop OR b.shard >= w.shards)
    RETURNING b.key, w.drop
),

made AS (
    INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, last_refill)
    SELECT
        'rate', w.key, s.shard, w.burst / w.shards, 0, now()
    FROM whole AS w
    CROSS JOIN LATERAL generate_series(0, w.shards - 1) AS s (shard)
    WHERE
        NOT w.drop
        AND NOT EXISTS (SELECT FROM held AS h WHERE h.key = w.key AND h.shard = s.shard)
    ORDER BY w.key, s.shard
    RETURNING true
)

SELECT
    (SELECT count(DISTINCT d.key) FROM dropped AS d WHERE d.drop) AS dropped,
    (SELECT count(*) FROM made) AS made,
    (SELECT count(*) FROM dropped AS d WHERE NOT d.drop) AS cut
