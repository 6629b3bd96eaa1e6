-- Append events to groups: element i of $1 (groups), $2 (events) and $3 (priorities of new groups) is one message; $4
-- is the time, null for the server's. Returns the seqs in that order.
-- Index: the primary key of transport_groups, once to insert and once to lock.
-- Race 1: an ack or a claim removes the group's row. It does so under a lock that this one's FOR KEY SHARE keeps away.
-- Race 2: two publishers of one group. They take turns before a seq is drawn, so commits come in the order of the seqs.
SELECT p.seq FROM transport_publish($1::text[], $2::text[], $3::integer[], $4::double precision) AS p (seq)
