-- One page of the executions that have one of some statuses, in id order, behind the last id of the page before. As
-- `page`, from one range of the index per status, so that few of one status are found among many of another.
-- Index: executions_status, one range per status, forward, from behind the cursor. One status is written as a range
-- that no other index can answer in order: where all rows seem to have one status, the planner would walk the primary
-- key past all of them for another.
-- Race: as for page. The statuses are distinct, so that no execution comes twice.
SELECT e.id, e.definition_id, e.version, e.status, e.outcome, e.active_path, e.parent_id
FROM unnest($5::text[]) AS s (status)
CROSS JOIN LATERAL (
    SELECT x.*
    FROM executions AS x
    WHERE
        (x.status, x.id) > (s.status, $1::text)
        AND x.status <= s.status
        AND ($2::text IS NULL OR x.definition_id = $2::text)
        AND (NOT $3::boolean OR x.parent_id IS NULL)
    ORDER BY x.status, x.id
    LIMIT $4::integer
) AS e
ORDER BY e.id
LIMIT $4::integer
