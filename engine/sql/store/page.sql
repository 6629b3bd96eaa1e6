-- One page of executions in id order, behind the last id of the page before. Without filters it is bounded by its
-- limit; a filter passes over what it does not want.
-- Index: primary key, forward, from behind the cursor.
-- Race: executions come and go between pages. A page starts behind an id, not behind a number of rows: what is there
-- throughout comes once.
SELECT e.id, e.definition_id, e.version, e.status, e.outcome, e.active_path, e.parent_id
FROM executions AS e
WHERE
    e.id > $1::text
    AND ($2::text IS NULL OR e.definition_id = $2::text)
    AND (NOT $3::boolean OR e.parent_id IS NULL)
ORDER BY e.id
LIMIT $4::integer
