-- Insert the children of all parents of a batch: insert_many's twelve arrays and the parent of each. The second
-- statement of a flush that spawns, after the parents are locked and before any row is changed.
-- Returns (parent, id, queue) of those that landed; one whose identity is occupied does not, and nobody waits for it.
-- Index: gen_durable_correlation as the only arbiter.
-- Race: two batches with the same new identities meet in one order, as in insert_many.
INSERT INTO gen_durable (
    fsm, fsm_version, step, state, queue, priority, eligible_at,
    concurrency_key, rate_limit, weight, correlation_key, correlation_scope, parent_id
)
SELECT
    j.fsm, j.fsm_version, j.step, j.state::jsonb, j.queue, j.priority,
    coalesce(j.eligible_at, now()), j.concurrency_key, j.rate_limit, j.weight,
    j.correlation_key, j.correlation_scope::durable_status[], j.parent_id
FROM unnest(
    $1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::smallint[],
    $7::timestamptz[], $8::text[], $9::text[], $10::double precision[], $11::text[], $12::text[], $13::bigint[]
) WITH ORDINALITY AS j (
    fsm, fsm_version, step, state, queue, priority,
    eligible_at, concurrency_key, rate_limit, weight, correlation_key, correlation_scope, parent_id, ordinal
)
ORDER BY j.correlation_key, j.ordinal
ON CONFLICT (correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
RETURNING parent_id, id, queue
