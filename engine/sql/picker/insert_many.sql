-- Insert a batch of jobs: twelve parallel arrays, so one text and one plan at any size.
-- Returns (ordinal, id) for every input, id null where the identity is occupied. Ids are drawn before the insert
-- because RETURNING cannot name the input row, and a caller must know which of its jobs was the duplicate.
-- Index: gen_durable_correlation as the only arbiter.
-- Race: two batches with the same new identities. ORDER BY correlation_key makes them meet in one order: the later
-- one waits once and skips; in opposite orders each would wait for the other.
WITH input AS MATERIALIZED (
    SELECT
        j.*,
        nextval('gen_durable_id_seq') AS id
    FROM unnest(
        $1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::smallint[],
        $7::timestamptz[], $8::text[], $9::text[], $10::double precision[], $11::text[], $12::text[]
    ) WITH ORDINALITY AS j (
        fsm, fsm_version, step, state, queue, priority,
        eligible_at, concurrency_key, rate_limit, weight, correlation_key, correlation_scope, ordinal
    )
),

inserted AS (
    INSERT INTO gen_durable (
        id, fsm, fsm_version, step, state, queue, priority, eligible_at,
        concurrency_key, rate_limit, weight, correlation_key, correlation_scope
    )
    OVERRIDING SYSTEM VALUE
    SELECT
        i.id, i.fsm, i.fsm_version, i.step, i.state::jsonb, i.queue, i.priority,
        coalesce(i.eligible_at, now()), i.concurrency_key, i.rate_limit, i.weight,
        i.correlation_key, i.correlation_scope::durable_status[]
    FROM input AS i
    ORDER BY i.correlation_key, i.ordinal
    ON CONFLICT (correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
    RETURNING id
)

SELECT
    i.ordinal,
    n.id
FROM input AS i
LEFT JOIN inserted AS n ON i.id = n.id
ORDER BY i.ordinal
