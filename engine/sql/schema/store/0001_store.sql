-- The store's tables (store.md; names as in its document).
--
-- What a listing shows stands in columns of its own. The document casts `data` to jsonb there, which a context that
-- holds a NUL character makes fail for every page (docs/findings.md, "one context breaks every listing"); `data` is
-- text, as it must be to hold any JSON, and nothing parses it. The version stands in its column only.
--
-- Ids are compared byte by byte, so that their order is the same in every database and in the client that merges pages
-- of several, and outlives an upgrade of the system's locales.

CREATE TABLE executions (
    id text COLLATE "C" PRIMARY KEY,
    definition_id text NOT NULL,
    data text NOT NULL,
    -- The compare-and-set token: 1, 2, 3 ...; an execution that was never saved has no row.
    version integer NOT NULL CHECK (version >= 1),
    status text,
    outcome text,
    active_path text,
    parent_id text
);
-- Listings by status. An update that keeps the status does not touch it.
CREATE INDEX executions_status ON executions (status, id);

CREATE TABLE outbox (
    seq bigserial PRIMARY KEY,
    target_id text,
    event text NOT NULL
);

CREATE TABLE processed_events (
    execution_id text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (execution_id, event_id)
);

CREATE TABLE timers (
    execution_id text COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    -- Seconds since the epoch. NaN sorts above every number: such a timer would never be due.
    fire_at double precision NOT NULL CHECK (fire_at > '-infinity' AND fire_at < 'infinity'),
    PRIMARY KEY (execution_id, path)
);
-- The sweep, oldest due first.
CREATE INDEX timers_due ON timers (fire_at);

CREATE TABLE spawns (
    seq bigserial PRIMARY KEY,
    parent_id text NOT NULL,
    child_id text NOT NULL,
    root_path text NOT NULL,
    context text NOT NULL
);

CREATE TABLE trace (
    execution_id text COLLATE "C" NOT NULL,
    idx integer NOT NULL,
    entry text NOT NULL,
    PRIMARY KEY (execution_id, idx)
);

-- The fast path: compare, write and mark in one round trip. False, and nothing changed, where the row is not at
-- `old_version` or the event was processed before: the transaction stays clean, and the caller asks which it was.
--
-- The version guards the marker too: an event's marker is only ever written together with a new version of its
-- execution, so while the version is still the old one no marker can have come since this statement's snapshot.
-- A first save inserts; two that race meet at the primary key, and the later one finds its row taken.
CREATE FUNCTION harel_commit_cas(
    execution text,
    definition text,
    new_data text,
    old_version integer,
    event text,
    new_status text DEFAULT NULL,
    new_outcome text DEFAULT NULL,
    new_active_path text DEFAULT NULL,
    new_parent_id text DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql
-- Its statements are asked about one id; a plan made anew for each call costs more than the call.
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF old_version = 0 THEN
        INSERT INTO executions (id, definition_id, data, version, status, outcome, active_path, parent_id)
        SELECT execution, definition, new_data, 1, new_status, new_outcome, new_active_path, new_parent_id
        WHERE NOT EXISTS (
            SELECT FROM processed_events AS p WHERE p.execution_id = execution AND p.event_id = event
        )
        ON CONFLICT (id) DO NOTHING;
    ELSE
        UPDATE executions AS e SET
            definition_id = definition,
            data = new_data,
            version = old_version + 1,
            status = new_status,
            outcome = new_outcome,
            active_path = new_active_path,
            parent_id = new_parent_id
        WHERE
            e.id = execution
            AND e.version = old_version
            AND NOT EXISTS (
                SELECT FROM processed_events AS p WHERE p.execution_id = execution AND p.event_id = event
            );
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF event IS NOT NULL THEN
        INSERT INTO processed_events (execution_id, event_id) VALUES (execution, event);
    END IF;
    RETURN true;
END
$$;
