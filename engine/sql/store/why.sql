-- Why a commit changed nothing: the stored version (null where there is no row), and whether the event was processed.
-- Index: primary keys of executions and processed_events, one probe each.
-- Race: asked after the refusal, in a snapshot of its own: the version may have moved on once more. It never moves
-- back, so it is never the expected one.
SELECT
    (SELECT e.version FROM executions AS e WHERE e.id = $1::text) AS version,
    exists(
        SELECT FROM processed_events AS p WHERE p.execution_id = $1::text AND p.event_id = $2::text
    ) AS processed
