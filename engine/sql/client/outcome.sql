-- How far instance $1 is: status, result and error. No row: there is no such instance, or no more.
-- Index: primary key.
-- Race: none; one row of one snapshot.
SELECT
    g.status::text,
    g.result::text,
    g.last_error
FROM gen_durable AS g
WHERE g.id = $1::bigint
