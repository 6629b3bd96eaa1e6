-- The longest waiting are all of one gate, of which every slot is taken.
INSERT INTO gen_durable (fsm, step, eligible_at, concurrency_key)
SELECT 'order', 'charge', now() - interval '1 day' + n * interval '1 millisecond', 'gate:full'
FROM generate_series(1, %(backlog)s) AS n;

INSERT INTO gen_durable (fsm, step, status, locked_by, lease_expires_at, concurrency_key, concurrency_shard)
SELECT
    'order',
    'charge',
    'executing',
    'seed:default@node-a.' || n,
    now() + interval '30 days' + n * interval '1 second',
    'gate:full',
    n %% 4
FROM generate_series(1, 400) AS n;

INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, counted)
SELECT 'conc', 'gate:full', s, 100, 0, pg_current_snapshot()
FROM generate_series(0, 3) AS s;
