-- Give group $1 the priority $2, leased or not.
-- Index: the primary key. Race: the group is drained meanwhile: nothing changes.
UPDATE transport_groups AS g SET priority = $2::integer WHERE g.group_id = $1::text
RETURNING g.group_id
