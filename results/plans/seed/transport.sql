-- Groups of a transport: a third leased or parked, the rest ready in five priorities; one group has a long queue.
INSERT INTO transport_groups (group_id, locked_by, lock_expiry, priority)
SELECT
    'g' || n,
    CASE WHEN n %% 3 = 0 THEN 'holder' END,
    CASE WHEN n %% 3 = 0 THEN 4000000000 ELSE 1000 END + n * 1e-3,
    n %% 5
FROM generate_series(1, %(rows)s::bigint / 2) AS n;

INSERT INTO transport_messages (group_id, event)
SELECT 'g' || n, repeat('m', 60) FROM generate_series(1, %(rows)s::bigint / 2) AS n;

INSERT INTO transport_messages (group_id, event)
SELECT 'g3', repeat('m', 60) FROM generate_series(1, %(rows)s::bigint / 2) AS n;
