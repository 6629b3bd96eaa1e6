-- Claim up to $2 runnable, eligible jobs of queue $1 for worker $3 with a lease of $4 ms; $5 names the configured
-- gates. Returns the rows with their place in the pick order.
-- Index: gen_durable_pick stops at the limit; the sibling probe and the arbiter are gen_durable_concurrency_active.
-- Not `sibling.executing IS NULL`: the planner takes that for one row in 200, and so a backlog of less than 200 batches
-- for less than a batch, which it reads whole and sorts (docs/findings.md, "a guard that hides the limit").
-- Race 1: two claims see one row. SKIP LOCKED: the later one takes the next.
-- Race 2: two claims take two rows of one key, each blind to the other's uncommitted claim. The arbiter refuses the
-- second: the statement fails whole (unique_violation) and is tried again.
-- Race 3: the same while both are still uncommitted. The arbiter would make one wait for the other, and two claims that
-- meet at two keys in opposite orders would wait for each other (docs/findings.md, "claims deadlock"). So a claim first
-- tries the lock that stands for the key, among 4096, and leaves the row to the next pick where another claim has it.
-- Not an order of the update: that would be the plan's, and a hash join does not keep it.
-- A claim waits for no claim, then. At the arbiter it may wait for a flush or a reap that is ending the key's owner;
-- neither waits once it has changed a row.
-- The lock taken in `candidate` is what keeps the ctid valid until the UPDATE.
WITH candidate AS MATERIALIZED (
    SELECT
        g.ctid AS tid,
        g.id,
        g.priority,
        g.eligible_at,
        g.concurrency_key,
        coalesce(g.concurrency_name = ANY ($5::text[]), false) AS gated
    FROM gen_durable AS g
    LEFT JOIN LATERAL (
        SELECT true AS executing
        FROM gen_durable AS s
        WHERE
            s.concurrency_key = g.concurrency_key
            AND s.status = 'executing' AND s.concurrency_key IS NOT NULL AND s.concurrency_shard IS NULL
        LIMIT 1
    ) AS sibling ON true
    WHERE
        g.status = 'runnable'
        AND g.queue = $1::text
        AND g.eligible_at <= now()
        AND (NOT coalesce(sibling.executing, false) OR g.concurrency_name = ANY ($5::text[]))
    ORDER BY g.priority, g.eligible_at
    LIMIT $2::bigint
    FOR NO KEY UPDATE OF g SKIP LOCKED
),

ranked AS (
    SELECT
        c.*,
        row_number() OVER (ORDER BY c.priority, c.eligible_at, c.id) AS place,
        row_number() OVER (PARTITION BY c.concurrency_key ORDER BY c.priority, c.eligible_at, c.id) AS place_in_key
    FROM candidate AS c
),

chosen AS MATERIALIZED (
    SELECT
        r.tid,
        r.place,
        r.gated
    FROM ranked AS r
    WHERE
        r.concurrency_key IS NULL
        OR r.gated
        OR (r.place_in_key = 1 AND pg_try_advisory_xact_lock(1735681636, hashtext(r.concurrency_key) & 4095))
)

UPDATE gen_durable AS g
SET
    status = 'executing',
    locked_by = $3::text,
    lease_expires_at = now() + $4::double precision * interval '1 millisecond',
    -- No slot yet: admit stamps the shard of the slot that it draws.
    concurrency_shard = CASE WHEN c.gated THEN -1 END,
    turn = 0,
    -- An identity whose scope ends here is given up for good, never retaken.
    correlation_scope = CASE
        WHEN 'executing' = ANY (g.correlation_scope) THEN g.correlation_scope
        ELSE '{}'
    END,
    updated_at = now()
FROM chosen AS c
WHERE g.ctid = c.tid
RETURNING
    c.place, g.id, g.fsm, g.fsm_version, g.step, g.state::text, g.attempt, g.queue, g.priority,
    g.concurrency_key, g.concurrency_shard, g.rate_limit, g.weight, g.awaits
