-- An event was delivered. Exactly this one: lower ones may have come to light since (see outbox).
-- Index: primary key.
-- Race: another relay delivered it too. Its row is gone, and this changes nothing.
DELETE FROM outbox WHERE seq = $1::bigint
