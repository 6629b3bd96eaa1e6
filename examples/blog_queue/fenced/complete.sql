-- Who lost the claim completes nothing, and is told so.
UPDATE jobs
SET status = 'done', finished_at = now()
WHERE id = $1::bigint AND status = 'running' AND attempts = $2::integer
RETURNING id
