-- Extend the leases of the claims a node still holds, by $3 ms from now. Returns the claims extended.
-- Index: primary key, also for the re-join: a ctid that the lock found past the snapshot would match nothing. A probe
-- for each claim, in id order, which no plan can turn into a scan of all that executes (docs/findings.md, "A plan for
-- an empty queue"): a subquery that locks is not joined, and the status as text is no partial index's predicate.
-- Race: the reaper or a flush has the row: skipped, for the flush ends the claim and the reaper ends the lease; a
-- later tick finds out. A lease that ran out but was not yet reaped is extended: the claim was never given away.
WITH held AS MATERIALIZED (
    SELECT h.id
    FROM (
        SELECT u.id, u.claim
        FROM unnest($1::bigint[], $2::text[]) AS u (id, claim)
        ORDER BY u.id
    ) AS c
    CROSS JOIN LATERAL (
        SELECT g.id
        FROM gen_durable AS g
        WHERE g.id = c.id AND g.locked_by = c.claim AND g.status::text = 'executing'
        FOR NO KEY UPDATE OF g SKIP LOCKED
    ) AS h
)

UPDATE gen_durable AS g
SET
    lease_expires_at = now() + $3::double precision * interval '1 millisecond',
    -- As it is, for the generated column that it makes due: see limiter/admit.
    concurrency_key = g.concurrency_key
FROM held AS h
WHERE g.id = h.id
RETURNING g.id, g.locked_by
