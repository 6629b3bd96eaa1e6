-- Limits: gates with their slots drawn by the executing rows, rates at work, and rates that nobody has used for long.
INSERT INTO gen_durable_bucket_configs (kind, name, rate, capacity, shards)
VALUES ('conc', 'gate', NULL, 400, 4), ('rate', 'api', 100, 200, 1), ('rate', 'idle', 100, 200, 1);

INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, counted)
SELECT 'conc', 'gate:' || k, s, 100, 50, pg_current_snapshot()
FROM generate_series(0, 19) AS k
CROSS JOIN generate_series(0, 3) AS s;

INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, last_refill)
SELECT 'rate', 'api:' || k, 0, 200, 200, now() - interval '1 second'
FROM generate_series(0, 49) AS k;

INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, last_refill)
SELECT 'rate', 'idle:' || k, 0, 200, 10, now() - interval '1 day'
FROM generate_series(1, %(rows)s::bigint / 100) AS k;
