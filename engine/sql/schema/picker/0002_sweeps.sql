-- The reaper's and the collector's sweeps, in their whole order. Of an index on the instant alone PostgreSQL 13 keeps a
-- plan from an empty queue that sorts all rows, not those of one instant (docs/findings.md, "A plan for an empty
-- queue").
-- The stronger locks come first: a sweep under way has one that lets an index be made and not be dropped, and wants one
-- that waits for either.
DROP INDEX gen_durable_lease;
DROP INDEX gen_durable_gc;

-- reap: visits expired leases only. An executing row always has a lease: the second condition keeps the index from
-- answering whoever asks for executing rows by something else. On empty tables all indexes cost the same, the one that
-- was made last is taken, and the claim's probe of a key would read all that executes ("The index that was made last").
CREATE INDEX gen_durable_lease ON gen_durable (lease_expires_at, id)
WHERE status = 'executing' AND lease_expires_at IS NOT NULL;

-- gc_select: terminal rows, oldest first, from a place on.
CREATE INDEX gen_durable_gc ON gen_durable (updated_at, id)
WHERE status IN ('done', 'failed');
