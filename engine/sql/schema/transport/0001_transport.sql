-- The transport's tables (store.md, "Around it").
--
-- A group is an execution: at most one consumer at a time, first in first out. Its row exists while it has messages,
-- and is what publishers, claims and acknowledgements lock.

CREATE TABLE transport_messages (
    seq bigserial PRIMARY KEY,
    group_id text NOT NULL,
    event text NOT NULL
);
CREATE INDEX transport_messages_group ON transport_messages (group_id, seq);

CREATE TABLE transport_groups (
    group_id text PRIMARY KEY,
    locked_by text,
    -- Seconds since the epoch: until when the lease holds; for a free group, since when it has waited.
    lock_expiry double precision,
    priority integer NOT NULL DEFAULT 0
);
