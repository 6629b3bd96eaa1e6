-- Executions of a store, each with a processed event; some with timers and a trace; an outbox and spawns with a backlog.
INSERT INTO executions (id, definition_id, data, version, status, outcome, active_path, parent_id)
SELECT
    'e' || n,
    'order-' || n %% 3,
    repeat('d', 200),
    1 + n %% 5,
    CASE WHEN n * 7919 %% 10 < 2 THEN 'RUNNING' WHEN n * 7919 %% 100 = 55 THEN 'FAILED' ELSE 'DONE' END,
    NULL,
    'root/step',
    CASE WHEN n %% 10 = 0 THEN 'e' || n / 10 END
FROM generate_series(1, %(rows)s::bigint) AS n;

INSERT INTO processed_events (execution_id, event_id)
SELECT 'e' || n, 'v' || n FROM generate_series(1, %(rows)s::bigint) AS n;

INSERT INTO timers (execution_id, path, fire_at)
SELECT
    'e' || n * 10,
    'root/wait',
    CASE WHEN n %% 2 = 0 THEN 1000 + n ELSE 4000000000 + n END
FROM generate_series(1, %(rows)s::bigint / 10) AS n;

INSERT INTO trace (execution_id, idx, entry)
SELECT 'e' || n * 10, i, repeat('t', 60)
FROM generate_series(1, %(rows)s::bigint / 20) AS n
CROSS JOIN generate_series(0, 9) AS i;

INSERT INTO outbox (target_id, event)
SELECT CASE WHEN n %% 20 > 0 THEN 'e' || n * 7 %% 1000 END, repeat('o', 60)
FROM generate_series(1, %(rows)s::bigint / 5) AS n;

INSERT INTO spawns (parent_id, child_id, root_path, context)
SELECT 'e' || n, 'child' || n, 'root', '{}'
FROM generate_series(1, %(rows)s::bigint / 10) AS n;
