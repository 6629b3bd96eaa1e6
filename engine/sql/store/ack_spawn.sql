-- A child was made. Exactly this one (see outbox).
-- Index: primary key.
-- Race: another relay made it too. Its row is gone, and this changes nothing.
DELETE FROM spawns WHERE seq = $1::bigint
