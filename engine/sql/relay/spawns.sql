-- Up to $2 children to be made behind seq $1, oldest first, locked, each with its parent's definition and data; null
-- where there is no parent.
-- Index: the primary keys. Race: another relay makes some of them: SKIP LOCKED. Their order does not matter, but the
-- emits of an emitter to its child wait in the outbox until the child is there.
SELECT
    s.seq,
    s.parent_id,
    s.child_id,
    s.root_path,
    s.context,
    e.definition_id,
    e.data
FROM spawns AS s
LEFT JOIN executions AS e ON s.parent_id = e.id
WHERE s.seq > $1::bigint
ORDER BY s.seq
LIMIT $2::bigint
FOR UPDATE OF s SKIP LOCKED
