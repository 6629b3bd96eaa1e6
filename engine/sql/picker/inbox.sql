-- The pending signals of the instances $1, oldest first: what their next steps are handed.
-- Index: signals_target, one probe per instance.
-- Race: a signal that comes later is not handed to this step; the park rechecks for it, a progress leaves it there.
SELECT
    s.target_id,
    s.id,
    s.name,
    s.payload::text
FROM signals AS s
WHERE s.target_id = ANY ($1::bigint[])
ORDER BY s.target_id, s.id
