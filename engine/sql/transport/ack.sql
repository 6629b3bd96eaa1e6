-- Acknowledge messages: element i of $1 (groups), $2 (seqs) and $3 (tokens) is one; $4 is the time, null for the
-- server's. Returns in order whether each took effect.
-- Index: both primary keys, and transport_messages_group for the head and for what is left.
-- Race 1: the lease lapsed and another took the group over. The token decides, under the group's lock.
-- Race 2: a publisher appends to a group that looks drained. The row is removed only under FOR UPDATE, had without
-- waiting, and after another look.
SELECT a.done
FROM transport_ack($1::text[], $2::bigint[], $3::text[], $4::double precision) AS a
ORDER BY a.place
