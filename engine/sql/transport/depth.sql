-- How many messages there are, of group $1 or, where that is null, of all; counts no further than $2.
-- Index: transport_messages_group for one group. Two branches, of which one runs: with OR, a plan kept for every
-- argument reads the whole table.
-- Race: none; the answer is of a moment.
SELECT count(*) FROM (
    SELECT 1 FROM transport_messages AS m WHERE m.group_id = $1::text
    UNION ALL
    SELECT 1 FROM transport_messages AS m WHERE $1::text IS NULL
    LIMIT $2::bigint
) AS counted
