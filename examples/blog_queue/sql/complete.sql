UPDATE jobs
SET status = 'done', finished_at = now()
WHERE id = $1::bigint
