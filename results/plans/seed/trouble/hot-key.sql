-- The longest waiting are all of one key, which one of them holds: a claim has to walk past the others.
INSERT INTO gen_durable (fsm, step, eligible_at, concurrency_key)
SELECT 'order', 'charge', now() - interval '1 day' + n * interval '1 millisecond', 'head'
FROM generate_series(1, %(backlog)s) AS n;

INSERT INTO gen_durable (fsm, step, status, locked_by, lease_expires_at, concurrency_key)
VALUES ('order', 'charge', 'executing', 'seed:default@node-a.1', now() + interval '30 days', 'head');
