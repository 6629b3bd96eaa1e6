-- Let the transaction wait at most $1 ms for any one lock: the first statement of a flush that spawns.
-- Index: none.
-- Race: a stranger holds a child's identity in a transaction that stays open. The insert would wait for it, and with it
-- every outcome of the batch and every batch behind. It ends with lock_not_available instead, and the batch is divided.
SELECT set_config('lock_timeout', $1::integer::text, true)
