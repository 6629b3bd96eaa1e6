-- How many messages there are, of group $1 or, where that is null, of all; counts no further than $2.
-- Index: transport_messages_group for one group.
-- Race: none; the answer is of a moment.
SELECT count(*) FROM (
    SELECT 1 FROM transport_messages AS m
    WHERE $1::text IS NULL OR m.group_id = $1::text
    LIMIT $2::bigint
) AS counted
