-- As it stands in many posts.
UPDATE jobs
SET status = 'running', claimed_at = now(), attempts = attempts + 1
WHERE id IN (
    SELECT id FROM jobs
    WHERE status = 'pending'
    ORDER BY id
    LIMIT $1::integer
    FOR UPDATE SKIP LOCKED
)
RETURNING id, payload
