-- Up to $1 outbox rows for nobody in particular, oldest first.
-- Index: outbox_broadcast. Race: another relay reads them too. Both hand them on in order, and who acts on one compares
-- event ids.
SELECT o.seq, o.event FROM outbox AS o WHERE o.target_id IS NULL ORDER BY o.seq LIMIT $1::bigint
