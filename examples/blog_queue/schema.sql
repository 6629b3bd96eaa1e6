CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payload text NOT NULL,
    status text NOT NULL DEFAULT 'pending',
    attempts integer NOT NULL DEFAULT 0,
    claimed_at timestamptz,
    finished_at timestamptz
);
CREATE INDEX jobs_pending ON jobs (id) WHERE status = 'pending';
CREATE INDEX jobs_running ON jobs (claimed_at) WHERE status = 'running';
