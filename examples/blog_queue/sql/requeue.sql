-- The worker of such a job has died, says the post.
UPDATE jobs
SET status = 'pending', claimed_at = NULL
WHERE status = 'running' AND claimed_at < now() - $1::double precision * interval '1 millisecond'
