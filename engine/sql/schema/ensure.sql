-- Where the applied migrations are recorded. Run first, under the migration lock.
CREATE TABLE IF NOT EXISTS pgreferee_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
