-- Count the newest $1 instances by queue and status.
-- Index: primary key, backwards; a table of fewer rows may as well be read whole.
-- Race: none; one snapshot.
WITH newest AS MATERIALIZED (
    SELECT
        g.queue,
        g.status
    FROM gen_durable AS g
    ORDER BY g.id DESC
    LIMIT $1::bigint
)

SELECT
    n.queue,
    n.status::text,
    count(*)
FROM newest AS n
GROUP BY n.queue, n.status
ORDER BY n.queue, n.status
