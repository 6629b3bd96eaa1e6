-- The next $2 gate keys after $1 (all from the first where it is null), in order.
-- Index: the buckets' primary key.
-- Race: keys come and go. It locks nothing and promises nothing; what is done to a key is decided under its locks.
SELECT DISTINCT b.key
FROM gen_durable_buckets AS b
WHERE b.kind = 'conc' AND ($1::text IS NULL OR b.key > $1::text)
ORDER BY b.key
LIMIT $2::bigint
