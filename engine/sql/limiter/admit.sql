-- Let claimed rows start: a slot for each row $1 under claim $2 that has a gate and wants one ($3), and its weight in
-- tokens for each that has a rate. Returns every row that is still the claim's with the shard stamped on it, whether it
-- may start, and what is wrong with it if no wait will ever help.
-- Index: primary keys, one probe per row, in the form that picker/heartbeat has, and per bucket key.
-- Order: per key in pick order (priority, eligible_at, id). A gate admits the prefix that its slots fit, a rate the
-- prefix of those whose cumulative weight fits. Only rows that pass both are paid for. The draw on a rate is spread
-- over the shards in proportion to their levels, so that all of them have room to refill, as one counter would.
-- A key without rows is cold: its shards are taken as full, and made already debited.
-- Race 1: the row was reaped, perhaps claimed again, before this statement. The guard leaves it out; it is locked, so
-- none of that happens from here to the stamp (docs/findings.md, "an admission that comes late").
-- Race 2: two admits at one shard. SKIP LOCKED: the later one draws on what is left of the shards.
-- Race 3: two admits at one cold key. One of 4096 try-locks decides (`cold_lock` in engine/limiter.py); the loser
-- denies. Were it to wait at the primary
-- key instead, while it holds warm shards, admits could wait for each other (docs/findings.md, "cold keys deadlock").
-- Race 4: a key that was cold to the snapshot has been made since: unique_violation, tried again. If that waits, it is
-- for an admit with a younger snapshot, which therefore does not wait for this one.
-- Arithmetic: float8 operators raise on overflow and underflow, so a weight that no rate will pay is in no sum, and one
-- below 1e-12 is raised to that. Full shards are worth the burst itself, not the sum of its rounded parts. What
-- is written is clamped: rounding never meets the CHECK.
-- Clock: now() is this transaction's start and may be older than what another has written, so a refill is never counted
-- back. last_refill after clock_timestamp() means that the clock was set back: then it starts anew from now().
WITH wanted AS MATERIALIZED (
    SELECT
        g.id,
        g.priority,
        g.eligible_at,
        CASE WHEN c.slot AND g.concurrency_shard IS NOT NULL THEN g.concurrency_key END AS gate,
        g.concurrency_name AS gate_name,
        g.rate_limit AS rate,
        split_part(g.rate_limit, ':', 1) AS rate_name,
        g.weight
    FROM (
        SELECT u.id, u.claim, u.slot
        FROM unnest($1::bigint[], $2::text[], $3::boolean[]) AS u (id, claim, slot)
        ORDER BY u.id
    ) AS c
    CROSS JOIN LATERAL (
        SELECT
            g.id,
            g.priority,
            g.eligible_at,
            g.concurrency_key,
            g.concurrency_shard,
            g.concurrency_name,
            g.rate_limit,
            g.weight
        FROM gen_durable AS g
        WHERE g.id = c.id AND g.locked_by = c.claim AND g.status::text = 'executing'
        FOR NO KEY UPDATE OF g SKIP LOCKED
    ) AS g
),

checked AS MATERIALIZED (
    SELECT
        w.id, w.priority, w.eligible_at, w.gate, w.rate,
        CASE
            WHEN w.gate IS NOT NULL AND gate.name IS NULL THEN 'unknown gate'
            WHEN octet_length(w.rate) > 2000 THEN 'rate limit too long'
            WHEN w.rate IS NOT NULL AND rate.name IS NULL THEN 'unknown rate limit'
            WHEN w.rate IS NOT NULL AND w.weight > rate.capacity THEN 'weight above burst'
        END AS refusal,
        CASE WHEN w.rate IS NOT NULL AND w.weight <= rate.capacity THEN greatest(w.weight, 1e-12) ELSE 0 END AS weight,
        gate.capacity AS gate_capacity, gate.shards AS gate_shards,
        rate.capacity AS burst, rate.shards AS rate_shards, rate.rate AS tokens_per_second
    FROM wanted AS w
    LEFT JOIN gen_durable_bucket_configs AS gate ON gate.kind = 'conc' AND w.gate_name = gate.name
    LEFT JOIN gen_durable_bucket_configs AS rate ON rate.kind = 'rate' AND w.rate_name = rate.name
),

bucket AS MATERIALIZED (
    SELECT DISTINCT
        'conc' AS kind, c.gate AS key, c.gate_capacity AS capacity, c.gate_shards AS shards,
        0::double precision AS rate
    FROM checked AS c
    WHERE c.gate IS NOT NULL AND c.refusal IS NULL
    UNION ALL
    SELECT DISTINCT
        'rate' AS kind, c.rate AS key, c.burst AS capacity, c.rate_shards AS shards,
        c.tokens_per_second AS rate
    FROM checked AS c
    WHERE c.rate IS NOT NULL AND c.refusal IS NULL
),

grabbed AS MATERIALIZED (
    SELECT
        b.kind, b.key, b.shard, b.available, b.last_refill,
        k.capacity, k.shards, k.rate
    FROM gen_durable_buckets AS b
    INNER JOIN bucket AS k ON b.kind = k.kind AND b.key = k.key
    WHERE b.kind = 'conc' OR b.shard < k.shards
    ORDER BY b.kind, b.key, b.shard
    FOR UPDATE OF b SKIP LOCKED
),

missing AS MATERIALIZED (
    SELECT k.*
    FROM bucket AS k
    WHERE NOT EXISTS (SELECT FROM gen_durable_buckets AS b WHERE b.kind = k.kind AND b.key = k.key)
    ORDER BY k.kind, k.key
),

cold AS MATERIALIZED (
    SELECT m.*
    FROM missing AS m
    WHERE
        pg_try_advisory_xact_lock(
            1735681637,
            ('x' || left(encode(sha256(convert_to(m.kind || ' ' || m.key, 'UTF8')), 'hex'), 3))::bit(12)::integer
        )
),

-- One row a shard, whatever a scan under contention yields.
shard AS MATERIALIZED (
    SELECT DISTINCT ON (g.kind, g.key, g.shard)
        g.kind, g.key, g.shard, false AS cold, g.capacity, g.shards,
        g.capacity / g.shards AS share,
        extract(EPOCH FROM greatest(now() - g.last_refill, interval '0'))::double precision
        * (g.rate / g.shards) AS gain,
        CASE
            WHEN g.kind = 'conc' THEN g.available
            ELSE least(
                g.capacity / g.shards,
                g.available + extract(EPOCH FROM greatest(now() - g.last_refill, interval '0'))::double precision
                * (g.rate / g.shards)
            )
        END AS level,
        coalesce(g.last_refill > clock_timestamp(), false) AS ahead
    FROM grabbed AS g
    UNION ALL
    SELECT
        c.kind, c.key, s.shard, true, c.capacity, c.shards, part.share, 0, part.share, false
    FROM cold AS c
    CROSS JOIN LATERAL generate_series(0, c.shards - 1) AS s (shard)
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN c.kind = 'rate' THEN c.capacity / c.shards
                -- What K leaves over goes to the first shards, one slot each.
                ELSE floor(c.capacity / c.shards)
                    + (s.shard < c.capacity - c.shards * floor(c.capacity / c.shards))::integer
            END AS share
    ) AS part
),

total AS MATERIALIZED (
    SELECT
        s.kind, s.key,
        CASE
            WHEN s.kind = 'rate' AND count(*) = max(s.shards) AND bool_and(s.level >= s.share) THEN max(s.capacity)
            ELSE sum(s.level)
        END AS level
    FROM shard AS s
    GROUP BY s.kind, s.key
),

placed AS (
    SELECT
        c.*,
        row_number() OVER (PARTITION BY c.gate ORDER BY c.priority, c.eligible_at, c.id) AS place
    FROM checked AS c
    WHERE c.refusal IS NULL
),

gated AS (
    SELECT
        p.*,
        sum(p.weight) OVER (
            PARTITION BY p.rate ORDER BY p.priority, p.eligible_at, p.id ROWS UNBOUNDED PRECEDING
        ) AS weight_up_to
    FROM placed AS p
    LEFT JOIN total AS t ON t.kind = 'conc' AND p.gate = t.key
    WHERE p.gate IS NULL OR p.place <= t.level
),

admitted AS (
    SELECT
        g.id, g.gate, g.rate, g.weight,
        row_number() OVER (PARTITION BY g.gate ORDER BY g.place) AS slot
    FROM gated AS g
    LEFT JOIN total AS t ON t.kind = 'rate' AND g.rate = t.key
    WHERE g.rate IS NULL OR g.weight_up_to <= t.level
),

seat AS (
    SELECT
        s.key, s.shard,
        sum(s.level) OVER (PARTITION BY s.key ORDER BY s.shard) AS last,
        s.level
    FROM shard AS s
    WHERE s.kind = 'conc'
),

seated AS MATERIALIZED (
    SELECT
        a.id, a.gate, a.rate, a.weight, s.shard
    FROM admitted AS a
    LEFT JOIN seat AS s ON a.gate = s.key AND a.slot > s.last - s.level AND a.slot <= s.last
),

draw AS MATERIALIZED (
    SELECT
        s.kind, s.key, s.shard, s.cold, s.share, s.gain, s.ahead,
        CASE
            WHEN s.kind = 'conc' THEN taken.slots
            ELSE paid.weight * (s.level / nullif(t.level, 0))
        END AS amount
    FROM shard AS s
    INNER JOIN total AS t ON s.kind = t.kind AND s.key = t.key
    LEFT JOIN (SELECT gate, shard, count(*)::double precision AS slots FROM seated GROUP BY gate, shard) AS taken
        ON s.kind = 'conc' AND s.key = taken.gate AND s.shard = taken.shard
    LEFT JOIN (SELECT rate, sum(weight) AS weight FROM seated GROUP BY rate) AS paid
        ON s.kind = 'rate' AND s.key = paid.rate
),

debited AS (
    UPDATE gen_durable_buckets AS b
    SET
        capacity = CASE WHEN d.kind = 'conc' THEN b.capacity ELSE d.share END,
        available = CASE
            WHEN d.kind = 'conc' THEN b.available - d.amount
            ELSE greatest(0, least(d.share, b.available + d.gain) - coalesce(d.amount, 0))
        END,
        last_refill = CASE
            WHEN d.kind = 'conc' THEN NULL
            WHEN d.ahead THEN now()
            ELSE greatest(b.last_refill, now())
        END,
        idle_since = NULL
    FROM draw AS d
    WHERE b.kind = d.kind AND b.key = d.key AND b.shard = d.shard AND NOT d.cold AND (d.amount > 0 OR d.ahead)
),

made AS (
    INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, last_refill, counted)
    SELECT
        d.kind, d.key, d.shard, d.share,
        greatest(0, d.share - coalesce(d.amount, 0)),
        CASE WHEN d.kind = 'rate' THEN now() END,
        CASE WHEN d.kind = 'conc' THEN pg_current_snapshot() END
    FROM draw AS d
    WHERE
        d.cold
        AND EXISTS (SELECT FROM draw AS any_of WHERE any_of.kind = d.kind AND any_of.key = d.key AND any_of.amount > 0)
    ORDER BY d.kind, d.key, d.shard
),

stamped AS (
    UPDATE gen_durable AS g
    -- The key, as it is: it makes a generated column due. Where an update makes none due, PostgreSQL 16 and later read
    -- the expressions of all of them anew for every row.
    SET concurrency_shard = s.shard, updated_at = now(), concurrency_key = s.gate
    FROM seated AS s
    WHERE g.id = s.id AND s.gate IS NOT NULL
)

-- A sum over a union: a join of two small guesses is a nested loop, the square of the batch.
SELECT
    a.id,
    bool_or(a.admitted) AS admitted,
    max(a.shard) AS shard,
    max(a.refusal) AS refusal
FROM (
    SELECT c.id, false AS admitted, NULL::smallint AS shard, c.refusal FROM checked AS c
    UNION ALL
    SELECT s.id, true, s.shard, NULL FROM seated AS s
) AS a
GROUP BY a.id
