-- The rows are chosen once, whatever the plan; the attempt is the claim's fence.
WITH next AS MATERIALIZED (
    SELECT id FROM jobs
    WHERE status = 'pending'
    ORDER BY id
    LIMIT $1::integer
    FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status = 'running', claimed_at = now(), attempts = attempts + 1
FROM next
WHERE jobs.id = next.id
RETURNING jobs.id, jobs.payload, jobs.attempts
