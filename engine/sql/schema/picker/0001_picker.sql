-- The picker's tables and indexes (picker.md §1, §2).
--
-- Two rules that the rest of the engine leans on:
--   1. The primary key of gen_durable is its only full unique index and never changes, so an UPDATE of any other
--      column takes a NO KEY lock and a claim (FOR NO KEY UPDATE) never conflicts with a foreign-key check.
--   2. Each partial index repeats its query's predicate word by word; a predicate that drifts is an index unused.

CREATE TYPE durable_status AS ENUM (
    'runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed'
);

CREATE TABLE gen_durable (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fsm text NOT NULL,
    fsm_version integer NOT NULL DEFAULT 1,
    step text NOT NULL,
    state jsonb NOT NULL DEFAULT '{}',
    attempt integer NOT NULL DEFAULT 0,
    result jsonb,
    last_error text,
    status durable_status NOT NULL DEFAULT 'runnable',
    queue text NOT NULL DEFAULT 'default',
    priority smallint NOT NULL DEFAULT 0,
    eligible_at timestamptz NOT NULL DEFAULT now(),
    locked_by text,
    lease_expires_at timestamptz,
    -- Counts the inline continuations under one claim; with locked_by it names one execution of one step.
    turn integer NOT NULL DEFAULT 0,
    concurrency_key text,
    concurrency_name text GENERATED ALWAYS AS (split_part(concurrency_key, ':', 1)) STORED,
    concurrency_shard smallint,
    rate_limit text,
    weight double precision NOT NULL DEFAULT 1,
    awaits text[],
    await_deadline timestamptz,
    parent_id bigint REFERENCES gen_durable ON DELETE SET NULL,
    children_pending integer NOT NULL DEFAULT 0,
    correlation_key text,
    correlation_scope durable_status[] NOT NULL DEFAULT '{}',
    correlation_guard text GENERATED ALWAYS AS (
        CASE WHEN status = ANY (correlation_scope) THEN correlation_key END
    ) STORED,
    inserted_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- A row is owned exactly while it executes, and an owner always has a deadline.
    CONSTRAINT gen_durable_owned CHECK (
        (status = 'executing') = (locked_by IS NOT NULL)
        AND (locked_by IS NULL) = (lease_expires_at IS NULL)
    ),
    -- An identity is taken at insert or never: a scope that a row could enter later would make an UPDATE meet the
    -- unique index, out of the order in which inserts meet it (docs/findings.md, "identity retaken").
    CONSTRAINT gen_durable_scope_from_insert CHECK (
        correlation_scope = '{}' OR 'runnable' = ANY (correlation_scope)
    ),
    -- Texts that an index holds, now or in a later status: an entry that is too long would fail there, not here.
    CONSTRAINT gen_durable_indexable CHECK (
        octet_length(queue) <= 2000
        AND octet_length(concurrency_key) <= 2000
        AND octet_length(correlation_key) <= 2000
    ),
    CONSTRAINT gen_durable_state_object CHECK (jsonb_typeof(state) = 'object'),
    CONSTRAINT gen_durable_children_pending CHECK (children_pending >= 0)
);

CREATE TABLE signals (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target_id bigint NOT NULL REFERENCES gen_durable ON DELETE CASCADE,
    name text NOT NULL,
    payload jsonb NOT NULL DEFAULT '{}',
    dedup_key text,
    inserted_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (target_id, dedup_key),
    CONSTRAINT signals_indexable CHECK (octet_length(name) <= 2000 AND octet_length(dedup_key) <= 2000)
);

-- Which deliveries were made, consumed or not: a signal that left the inbox must not come a second time
-- (docs/findings.md, "dedup forgets").
CREATE TABLE signal_receipts (
    target_id bigint NOT NULL REFERENCES gen_durable ON DELETE CASCADE,
    dedup_key text NOT NULL,
    PRIMARY KEY (target_id, dedup_key)
);

CREATE TABLE gen_durable_bucket_configs (
    kind text NOT NULL CHECK (kind IN ('rate', 'conc')),
    name text NOT NULL,
    rate double precision,
    capacity double precision NOT NULL,
    shards smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (kind, name)
);

-- `counted`: the snapshot in which a gate's shard was last counted from the rows that hold its slots; a slot freed by a
-- transaction that this snapshot sees is not given back again. `debt`: slots given out beyond a lowered capacity.
-- `idle_since`: since when sweeps have found a gate unused.
CREATE TABLE gen_durable_buckets (
    kind text NOT NULL CHECK (kind IN ('rate', 'conc')),
    key text NOT NULL,
    shard smallint NOT NULL,
    capacity double precision NOT NULL,
    available double precision NOT NULL,
    last_refill timestamptz,
    debt double precision NOT NULL DEFAULT 0,
    counted pg_snapshot,
    idle_since timestamptz,
    PRIMARY KEY (kind, key, shard),
    CHECK (available >= 0 AND available <= capacity)
);

-- claim: equality on queue keeps the order, so LIMIT stops the scan after about one batch.
CREATE INDEX gen_durable_pick ON gen_durable (queue, priority, eligible_at)
WHERE status = 'runnable';

-- reap: visits expired leases only.
CREATE INDEX gen_durable_lease ON gen_durable (lease_expires_at)
WHERE status = 'executing';

-- expire_awaits: visits expired deadlines only.
CREATE INDEX gen_durable_await_deadline ON gen_durable (await_deadline)
WHERE status = 'awaiting_signal' AND await_deadline IS NOT NULL;

-- The K = 1 arbiter, and the index of the claim's sibling probe.
CREATE UNIQUE INDEX gen_durable_concurrency_active ON gen_durable (concurrency_key)
WHERE status = 'executing' AND concurrency_key IS NOT NULL AND concurrency_shard IS NULL;

-- One row per occupied business identity; a signal's look-up by key.
CREATE UNIQUE INDEX gen_durable_correlation ON gen_durable (correlation_guard)
WHERE correlation_guard IS NOT NULL;

-- The parent join, and the guard that keeps children from being collected mid-join.
CREATE INDEX gen_durable_parent ON gen_durable (parent_id)
WHERE parent_id IS NOT NULL;

-- gc_select: terminal rows, oldest first.
CREATE INDEX gen_durable_gc ON gen_durable (updated_at)
WHERE status IN ('done', 'failed');

CREATE INDEX signals_target ON signals (target_id, name);
