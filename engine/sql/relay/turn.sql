-- Take the turn at this database's outbox and spawns, until the transaction ends. Returns whether it could be had.
-- Index: none. Race: another relay has it. The lock is only ever tried, and who does not get it looks again later.
SELECT pg_try_advisory_xact_lock(1735681640) AS mine
