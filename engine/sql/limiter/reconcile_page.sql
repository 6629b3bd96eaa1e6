-- The next $2 gate keys after $1, in order; no key is empty.
-- Index: the buckets' primary key.
-- Race: keys come and go. It locks nothing and promises nothing; what is done to a key is decided under its locks.
SELECT DISTINCT b.key
FROM gen_durable_buckets AS b
WHERE b.kind = 'conc' AND b.key > $1::text
ORDER BY b.key
LIMIT $2::bigint
