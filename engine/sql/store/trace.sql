-- An execution's trace, oldest step first.
-- Index: primary key, a range as long as the ring.
-- Race: none; one snapshot.
SELECT t.idx, t.entry
FROM trace AS t
WHERE t.execution_id = $1::text
ORDER BY t.idx
