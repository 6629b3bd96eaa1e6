-- Where the applied migrations are recorded. Run first, under the migration lock.
CREATE TABLE IF NOT EXISTS pgreferee_migrations (
    area text NOT NULL,
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (area, version)
)
