INSERT INTO jobs (payload, status, attempts, claimed_at, finished_at)
SELECT
    '{"job": "job-0-' || n || '"}',
    CASE WHEN n % 10 = 0 THEN 'pending' WHEN n % 100 = 1 THEN 'running' ELSE 'done' END,
    1,
    now() - interval '10 minutes',
    now()
FROM generate_series(1, 20000) AS s (n);
