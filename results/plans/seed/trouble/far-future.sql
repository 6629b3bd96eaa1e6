-- The most urgent priority is full of jobs that are not yet due.
INSERT INTO gen_durable (fsm, step, priority, eligible_at)
SELECT 'order', 'charge', -1, now() + interval '30 days' + n * interval '1 millisecond'
FROM generate_series(1, %(backlog)s) AS n;
