-- Extend the leases of the claims a node still holds, by $3 ms from now. Returns the claims extended.
-- Index: primary key, also for the re-join: a ctid that the lock found past the snapshot would match nothing.
-- Race: the reaper or a flush has the row: skipped, for the flush ends the claim and the reaper ends the lease; a
-- later tick finds out. A lease that ran out but was not yet reaped is extended: the claim was never given away.
WITH held AS MATERIALIZED (
    SELECT g.id
    FROM gen_durable AS g
    INNER JOIN unnest($1::bigint[], $2::text[]) AS c (id, claim) ON g.id = c.id AND g.locked_by = c.claim
    WHERE g.status = 'executing'
    ORDER BY g.id
    FOR NO KEY UPDATE OF g SKIP LOCKED
)

UPDATE gen_durable AS g
SET lease_expires_at = now() + $3::double precision * interval '1 millisecond'
FROM held AS h
WHERE g.id = h.id
RETURNING g.id, g.locked_by
