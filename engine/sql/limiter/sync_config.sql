-- Store the limits of a node: $1 kind, $2 name, $3 rate, $4 capacity, $5 shards. Returns those new or changed.
-- Index: primary key.
-- Race: nodes that boot together. They meet in (kind, name) order, whatever order their configurations have.
INSERT INTO gen_durable_bucket_configs AS old (kind, name, rate, capacity, shards)
SELECT
    c.kind, c.name, c.rate, c.capacity, c.shards
FROM unnest($1::text[], $2::text[], $3::double precision[], $4::double precision[], $5::smallint[])
    AS c (kind, name, rate, capacity, shards)
ORDER BY c.kind, c.name
ON CONFLICT (kind, name) DO UPDATE
    SET rate = excluded.rate, capacity = excluded.capacity, shards = excluded.shards
    WHERE (old.rate, old.capacity, old.shards) IS DISTINCT FROM (excluded.rate, excluded.capacity, excluded.shards)
RETURNING old.kind, old.name
