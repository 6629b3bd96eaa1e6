-- The oldest children that are yet to be made, oldest first.
-- Index: primary key, forward, from its start.
-- Race: as for outbox.
SELECT s.seq, s.parent_id, s.child_id, s.root_path, s.context
FROM spawns AS s
ORDER BY s.seq
LIMIT $1::integer
