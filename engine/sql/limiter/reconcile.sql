-- Count gates anew from the rows that hold their slots: $1 key and $2 shard are what the transaction has locked. Makes
-- shards that the configuration asks for, drops those it no longer has, and drops keys that nobody has used for $3 ms,
-- or whose configuration is gone once nobody holds a slot. Returns keys counted, shards corrected, made, dropped.
-- Index: gen_durable_lease for the executing rows (all of them, once a page), the buckets' primary key. A page is a
-- range of keys: a row is held against its two ends, not against an array, which a plan that does not know how many
-- keys there are looks through one by one for each row (docs/findings.md, "A sweep that squares").
-- Race 1: an admit that had a shard before it was locked here. A statement of its own, after the one that locks: its
-- snapshot sees all that was committed with the shard.
-- Race 2: a flush that ended a row before the snapshot, and its credit comes later. `counted` keeps the snapshot, and
-- credit asks it. The flushes that the snapshot does not see are credited, for their rows are counted here.
-- Race 3: a shard made since the lock, in a key of which older ones are held. Only whole keys are counted.
-- Where more rows execute than the capacity allows (it was lowered), free slots of other shards cover for it, and what
-- is left is debt: each shard keeps that many of its next credits. So does a shard that has more rows than its share,
-- covered for or not: its surplus has no place in it (docs/findings.md, "A surplus is credited"). Rows on a shard that
-- is dropped cannot give their slot back; nor can a surplus. The next sweep does.
-- A key is dropped only when a sweep has found it full, and nobody has touched it for $3 ms since: an admit that still
-- took it for cold would have to be older than that.
WITH held AS MATERIALIZED (
    SELECT h.key, h.shard
    FROM unnest($1::text[], $2::smallint[]) AS h (key, shard)
),

page AS MATERIALIZED (
    SELECT min(h.key) AS first, max(h.key) AS last
    FROM held AS h
),

stored AS MATERIALIZED (
    SELECT
        b.key, b.shard, b.capacity, b.available, b.debt, b.idle_since,
        b.ctid AS tid
    FROM gen_durable_buckets AS b
    WHERE
        b.kind = 'conc'
        AND b.key >= (SELECT p.first FROM page AS p)
        AND b.key <= (SELECT p.last FROM page AS p)
),

used AS MATERIALIZED (
    SELECT
        g.concurrency_key AS key, g.concurrency_shard AS shard, count(*)::double precision AS slots
    FROM gen_durable AS g
    WHERE
        g.status = 'executing' AND g.lease_expires_at IS NOT NULL
        AND g.concurrency_shard >= 0
        AND g.concurrency_key >= (SELECT p.first FROM page AS p)
        AND g.concurrency_key <= (SELECT p.last FROM page AS p)
    GROUP BY g.concurrency_key, g.concurrency_shard
),

-- Keys with as many shards held as there are. Sums over a union, for a join of three small guesses is a nested loop.
whole AS MATERIALIZED (
    SELECT
        f.key,
        bool_and(f.idle) AS idle,
        sum(f.slots) AS executing,
        array_agg(f.tid) FILTER (WHERE f.tid IS NOT NULL) AS tids,
        array_agg(f.shard) FILTER (WHERE f.tid IS NOT NULL) AS shards
    FROM (
        SELECT
            b.key, b.tid, b.shard, 1 AS missing, 0 AS slots,
            coalesce(b.idle_since < now() - $3::double precision * interval '1 millisecond', false) AS idle
        FROM stored AS b
        UNION ALL
        SELECT
            h.key, NULL, NULL, -1, 0, true
        FROM held AS h
        UNION ALL
        SELECT
            u.key, NULL, NULL, 0, u.slots, true
        FROM used AS u
    ) AS f
    GROUP BY f.key
    HAVING sum(f.missing) = 0 AND count(f.tid) > 0
),

gate AS MATERIALIZED (
    SELECT
        w.key, w.idle, w.executing, w.tids, w.shards AS stored, c.capacity, c.shards
    FROM whole AS w
    LEFT JOIN gen_durable_bucket_configs AS c ON c.kind = 'conc' AND c.name = split_part(w.key, ':', 1)
),

kept AS MATERIALIZED (
    SELECT g.*
    FROM gate AS g
    WHERE g.capacity IS NOT NULL AND NOT (g.executing = 0 AND g.idle)
),

part AS (
    SELECT
        k.key, s.shard, k.executing,
        floor(k.capacity / k.shards)
        + (s.shard < k.capacity - k.shards * floor(k.capacity / k.shards))::integer AS share,
        coalesce(u.slots, 0) AS used
    FROM kept AS k
    CROSS JOIN LATERAL generate_series(0, k.shards - 1) AS s (shard)
    LEFT JOIN used AS u ON k.key = u.key AND s.shard = u.shard
),

-- `uncovered`: executing rows that have no place in the share of their own shard.
balance AS (
    SELECT
        p.*,
        greatest(0, p.share - p.used) AS free,
        p.executing - sum(least(p.used, p.share)) OVER (PARTITION BY p.key) AS uncovered,
        sum(greatest(0, p.share - p.used)) OVER (PARTITION BY p.key) AS free_of_key,
        sum(greatest(0, p.share - p.used)) OVER (PARTITION BY p.key ORDER BY p.shard) AS free_up_to
    FROM part AS p
),

want AS MATERIALIZED (
    SELECT
        b.key, b.shard, b.share,
        b.free - least(b.free, greatest(0, b.uncovered - (b.free_up_to - b.free))) AS available,
        greatest(b.used - b.share, least(b.used, greatest(0, b.uncovered - b.free_of_key))) AS debt,
        b.executing = 0 AS unused
    FROM balance AS b
),

corrected AS (
    SELECT
        b.key, b.shard
    FROM stored AS b
    INNER JOIN want AS w ON b.key = w.key AND b.shard = w.shard
    WHERE
        (b.capacity, b.available, b.debt) IS DISTINCT FROM (w.share, w.available, w.debt)
),

-- Every shard of the key, also where its level stays: a late credit must not undo what a free shard covers for.
recounted AS (
    UPDATE gen_durable_buckets AS b
    SET
        capacity = w.share,
        available = w.available,
        debt = w.debt,
        counted = pg_current_snapshot(),
        idle_since = CASE WHEN w.unused THEN coalesce(b.idle_since, now()) END
    FROM want AS w
    WHERE
        b.kind = 'conc'
        AND b.key >= (SELECT p.first FROM page AS p)
        AND b.key <= (SELECT p.last FROM page AS p)
        AND b.key = w.key AND b.shard = w.shard
),

made AS (
    INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, debt, counted)
    SELECT
        'conc', w.key, w.shard, w.share, w.available, w.debt, pg_current_snapshot()
    FROM want AS w
    WHERE NOT EXISTS (
        SELECT FROM stored AS b
        WHERE b.key = w.key AND b.shard = w.shard
    )
    ORDER BY w.key, w.shard
    RETURNING true
),

-- By the place of a row that is held, and stays where it is.
dropped AS (
    DELETE FROM gen_durable_buckets AS b
    WHERE
        b.ctid = ANY (
            array(
                SELECT s.tid
                FROM gate AS g
                CROSS JOIN LATERAL unnest(g.tids, g.stored) AS s (tid, shard)
                WHERE
                    CASE
                        WHEN g.capacity IS NULL THEN g.executing = 0
                        ELSE (g.executing = 0 AND g.idle) OR s.shard >= g.shards
                    END
            )
        )
    RETURNING true
)

SELECT
    (SELECT count(*) FROM gate) AS counted,
    (SELECT count(*) FROM corrected) AS corrected,
    (SELECT count(*) FROM made) AS made,
    (SELECT count(*) FROM dropped) AS dropped
