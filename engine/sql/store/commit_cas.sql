-- A commit of the state alone, with or without an event's marker: compare, write and mark in one round trip, a
-- transaction of its own. False where the version is another, or the event was processed: nothing changed.
-- Index: primary keys of executions and processed_events, one probe each (in the function).
-- Race: two writers at one version. The later waits for the row's lock, then compares with what the first committed.
SELECT harel_commit_cas(
    $1::text, $2::text, $3::text, $4::integer, $5::text, $6::text, $7::text, $8::text, $9::text
)
