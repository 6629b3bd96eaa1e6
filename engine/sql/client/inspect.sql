-- All there is to know of the instances $1, in id order. Instants are in UTC whatever the session's zone is, for the
-- year 1 of another zone may be before what a driver can hold.
-- Index: primary key.
-- Race: none; rows of one snapshot.
SELECT
    g.id, g.fsm, g.fsm_version, g.step, g.state::text, g.status::text, g.attempt, g.queue, g.priority,
    g.eligible_at AT TIME ZONE 'UTC', g.locked_by, g.lease_expires_at AT TIME ZONE 'UTC', g.concurrency_key,
    g.rate_limit, g.weight, g.awaits, g.await_deadline AT TIME ZONE 'UTC', g.parent_id, g.children_pending,
    g.correlation_key, g.result::text, g.last_error, g.inserted_at AT TIME ZONE 'UTC',
    g.updated_at AT TIME ZONE 'UTC'
FROM gen_durable AS g
WHERE g.id = ANY ($1::bigint[])
ORDER BY g.id
