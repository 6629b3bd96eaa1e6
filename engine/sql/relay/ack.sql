-- Remove delivered outbox rows.
-- Index: the primary key. Race: another relay delivered and removed some: those are gone already.
DELETE FROM outbox AS o WHERE o.seq = ANY ($1::bigint[]) RETURNING o.seq
