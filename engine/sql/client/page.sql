-- Look at the next $2 instances behind id $1. Returns the ids of up to $3 of them whose status is $4 and whose queue is
-- $5, null meaning any; and, in every row, how many were looked at and the id of the last.
-- Index: primary key, from the id on; no index leads to (status, queue, id), so the look is bounded, not the match.
-- Race: rows come and go between two pages. A place in the order of an immutable key shows each that stays once.
WITH looked_at AS MATERIALIZED (
    SELECT
        g.id,
        g.status,
        g.queue
    FROM gen_durable AS g
    WHERE g.id > $1::bigint
    ORDER BY g.id
    LIMIT $2::bigint
),

wanted AS (
    SELECT l.id
    FROM looked_at AS l
    WHERE l.status = coalesce($4::text::durable_status, l.status) AND l.queue = coalesce($5::text, l.queue)
    ORDER BY l.id
    LIMIT $3::bigint
)

SELECT
    reached.looked_at,
    reached.id,
    w.id AS wanted
FROM (SELECT count(*) AS looked_at, max(l.id) AS id FROM looked_at AS l) AS reached
LEFT JOIN wanted AS w ON true
ORDER BY w.id
