-- The children of the instances $1, oldest first: what their next steps are handed.
-- Index: gen_durable_parent, one probe per instance.
-- Race: none; a row that executes has no child that could still move.
SELECT
    g.parent_id,
    g.id,
    g.fsm,
    g.status::text,
    g.state::text,
    g.result::text,
    g.last_error
FROM gen_durable AS g
WHERE g.parent_id = ANY ($1::bigint[]) AND g.parent_id IS NOT NULL
ORDER BY g.parent_id, g.id
