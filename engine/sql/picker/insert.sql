-- Insert one job. No row back means that its business identity is occupied.
-- Index: gen_durable_correlation as the only arbiter.
-- Race: two inserts of one identity; the loser waits for the winner's commit and returns nothing.
INSERT INTO gen_durable (
    fsm, fsm_version, step, state, queue, priority, eligible_at,
    concurrency_key, rate_limit, weight, correlation_key, correlation_scope
)
VALUES (
    $1::text, $2::integer, $3::text, $4::text::jsonb, $5::text, $6::smallint,
    coalesce($7::timestamptz, now()), $8::text, $9::text, $10::double precision, $11::text,
    $12::text::durable_status[]
)
ON CONFLICT (correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
RETURNING id
