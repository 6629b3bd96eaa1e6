-- Delete exactly the (target, signal) pairs that progressing outcomes consumed, over the rows that committed.
-- Index: primary key of signals.
-- Race: none; whoever writes a target's inbox holds the target's lock, and this transaction has it.
DELETE FROM signals AS s
USING unnest($1::bigint[], $2::bigint[]) AS c (target_id, id)
WHERE s.id = c.id AND s.target_id = c.target_id
