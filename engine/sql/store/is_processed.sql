-- Whether an event's effect on an execution was committed.
-- Index: primary key.
-- Race: a hint only. It may be committed right after; the commit itself refuses it then.
SELECT exists(
    SELECT FROM processed_events AS p WHERE p.execution_id = $1::text AND p.event_id = $2::text
) AS processed
