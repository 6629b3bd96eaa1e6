-- The oldest undelivered events, oldest first.
-- Index: primary key, forward, from its start.
-- Race: seq is drawn before the commit, so a lower one may appear after a higher one was delivered. Every reading
-- starts at the beginning, never behind the last seq seen, and finds it then.
SELECT o.seq, o.target_id, o.event
FROM outbox AS o
ORDER BY o.seq
LIMIT $1::integer
