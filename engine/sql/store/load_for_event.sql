-- One execution, and whether it processed an event: one snapshot, so that a marker is seen if and only if the version
-- that it came with is.
-- Index: primary keys of executions and processed_events, one probe each.
-- Race: a commit of the same event between two statements would show the old version with the new marker, or the
-- reverse. One statement shows one moment.
SELECT
    e.data,
    e.version,
    exists(
        SELECT FROM processed_events AS p WHERE p.execution_id = e.id AND p.event_id = $2::text
    ) AS processed
FROM executions AS e
WHERE e.id = $1::text
