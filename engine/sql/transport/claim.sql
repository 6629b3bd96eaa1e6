-- Lease up to $1 groups as $2 for $3 s, of priority $4 and above; $5 is the time, null for the server's. Returns one
-- head message per group, longest waiting group first.
-- Index: transport_groups_ready, one range per priority; transport_messages_group for the heads.
-- Race 1: two claims meet at a group. SKIP LOCKED: the later takes the next. A publisher's lock does not stand in the
-- way.
-- Race 2: the head is acknowledged between the look at the group and its lock. The head is read after the lock.
SELECT c.group_id, c.seq, c.event
FROM transport_claim($1::integer, $2::text, $3::double precision, $4::integer, $5::double precision) AS c
