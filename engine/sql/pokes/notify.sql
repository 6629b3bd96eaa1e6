-- Tell the listeners of channel $1 which queues may have work; $2 holds one payload a queue.
-- Index: none; no table is read.
-- Race: none is lost. A transaction that notifies commits under a lock on the database's notification queue, so this
-- one does nothing else.
SELECT pg_notify($1::text, p.payload)
FROM unnest($2::text[]) AS p (payload)
