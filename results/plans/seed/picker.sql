-- Instances. Every status is laid out by the INSERT itself: rows that an UPDATE promotes later lie close together in the
-- free space that it finds, and make a bad guard look twenty times cheaper than it is.
-- Row n has the place p = n * 7919 mod rows; the statuses are ranges of places, scattered over the table.
INSERT INTO gen_durable (
    id, fsm, step, state, status, queue, priority, eligible_at, locked_by, lease_expires_at,
    concurrency_key, concurrency_shard, rate_limit, awaits, await_deadline, parent_id, children_pending,
    correlation_key, correlation_scope, result, inserted_at, updated_at
)
OVERRIDING SYSTEM VALUE
SELECT
    r.n,
    'order',
    'charge',
    jsonb_build_object('n', r.n, 'note', repeat('x', 80)),
    r.status::durable_status,
    CASE WHEN r.p %% 20 = 19 THEN 'other' ELSE 'default' END,
    r.p %% 3,
    now() - interval '1 hour' - r.p * interval '1 millisecond',
    CASE WHEN r.status = 'executing' THEN 'seed:default@node-b.' || r.p END,
    CASE
        WHEN r.status = 'executing' AND r.rank < %(expired)s THEN now() - interval '1 minute' - r.rank / 50 * interval '1 second'
        WHEN r.status = 'executing' THEN now() + interval '30 days' + r.rank / 50 * interval '1 second'
    END,
    CASE
        WHEN r.status = 'runnable' AND r.p %% 10 = 0 THEN 'k' || r.p %% %(keys)s
        WHEN r.status = 'runnable' AND r.p %% 20 = 1 THEN 'hot'
        WHEN r.status = 'runnable' AND r.p %% 20 = 11 THEN 'gate:' || r.p %% 20 / 11 + r.p / 20 %% 20
        WHEN r.status = 'runnable' AND r.p %% 10 = 2 THEN 'k' || r.p
        WHEN r.status = 'executing' AND r.rank %% 5 = 0 THEN 'gate:' || r.rank / 5 %% 20
        WHEN r.status = 'executing' AND r.rank %% 5 IN (1, 2) THEN 'k' || r.rank * 10
        WHEN r.status IN ('done', 'failed') AND r.p %% 10 < 3 THEN 'k' || r.p
    END,
    CASE WHEN r.status = 'executing' AND r.rank %% 5 = 0 THEN r.rank / 5 %% 4 END,
    CASE WHEN r.status IN ('runnable', 'executing') AND r.p %% 20 = 3 THEN 'api:' || r.p / 20 %% 50 END,
    CASE WHEN r.status = 'awaiting_signal' THEN ARRAY['paid'] END,
    CASE
        WHEN r.status = 'awaiting_signal' AND r.rank < %(expired)s THEN now() - interval '1 minute' - r.rank * interval '1 ms'
        WHEN r.status = 'awaiting_signal' AND r.rank %% 2 = 0 THEN now() + interval '30 days'
    END,
    CASE
        WHEN r.n %% %(child_stride)s = 4 AND r.status NOT IN ('awaiting_children', 'awaiting_signal') AND %(joining)s > 0
            THEN coalesce(nullif((%(first_joining)s + r.n / %(child_stride)s %% %(joining)s) * %(inverse)s %% %(rows)s, 0), %(rows)s)
    END,
    CASE WHEN r.status = 'awaiting_children' THEN 100 ELSE 0 END,
    CASE WHEN r.p %% 5 = 0 THEN 'order-' || r.n END,
    CASE
        WHEN r.p %% 5 = 0 THEN ARRAY['runnable', 'executing', 'awaiting_signal', 'awaiting_children']::durable_status[]
        ELSE '{}'
    END,
    CASE WHEN r.status = 'done' THEN jsonb_build_object('sum', r.n) END,
    now() - interval '40 days' + r.n * interval '10 ms',
    now() - interval '20 days' + r.n * interval '10 ms'
FROM (
    SELECT
        b.n,
        b.p,
        CASE
            WHEN b.p < %(runnable)s THEN 'runnable'
            WHEN b.p < %(first_parked)s THEN 'executing'
            WHEN b.p < %(first_joining)s THEN 'awaiting_signal'
            WHEN b.p < %(first_joining)s + %(joining)s THEN 'awaiting_children'
            WHEN b.p %% 10 = 7 THEN 'failed'
            ELSE 'done'
        END AS status,
        CASE
            WHEN b.p < %(runnable)s THEN b.p
            WHEN b.p < %(first_parked)s THEN b.p - %(runnable)s
            ELSE b.p - %(first_parked)s
        END AS rank
    FROM (SELECT n, n * 7919 %% %(rows)s AS p FROM generate_series(1, %(rows)s::bigint) AS n) AS b
) AS r
ORDER BY r.n;

SELECT setval('gen_durable_id_seq', %(rows)s);

-- Inboxes of the parked and of the executing.
INSERT INTO signals (target_id, name, payload, dedup_key)
SELECT
    t.target,
    CASE WHEN t.s %% 4 = 0 THEN 'paid' ELSE 'other' END,
    jsonb_build_object('n', t.s),
    's' || t.s
FROM (
    SELECT
        s,
        coalesce(nullif(
            (%(runnable)s + s * 31 %% (%(executing)s + %(parked)s)) * %(inverse)s %% %(rows)s, 0
        ), %(rows)s) AS target
    FROM generate_series(1, %(signals)s::bigint) AS s
) AS t;

INSERT INTO signal_receipts (target_id, dedup_key)
SELECT s.target_id, s.dedup_key FROM signals AS s;
