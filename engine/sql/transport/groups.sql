-- Up to $2 groups behind $1 in the order of their ids, with their leases and how many messages each has, counted no
-- further than 1000.
-- Index: the primary key, from $1 on, also under a plan that is kept for every argument; transport_messages_group.
-- Race: none; the answer is of a moment.
SELECT
    g.group_id,
    g.locked_by,
    g.lock_expiry,
    g.priority,
    (
        SELECT count(*) FROM (
            SELECT 1 FROM transport_messages AS m WHERE m.group_id = g.group_id LIMIT 1000
        ) AS counted
    ) AS messages
FROM transport_groups AS g
WHERE g.group_id >= coalesce($1::text, '') AND ($1::text IS NULL OR g.group_id > $1::text)
ORDER BY g.group_id
LIMIT $2::bigint
