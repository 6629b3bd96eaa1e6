"""The schema: numbered migrations, applied in order and recorded in `pgreferee_migrations`.

Any number of processes may migrate at once: a transaction-level advisory lock lets one work and the others find the
work done. Each migration commits together with its record.
"""

from __future__ import annotations

from typing import Any

import psycopg

from engine.statements import load_migrations, load_text

# One arbitrary number for all processes; "pgrf" in ASCII.
MIGRATION_LOCK = 0x70677266


class SchemaTooNew(Exception):
    """The database holds a migration that this version of the engine does not know."""


def migrate(connection: psycopg.Connection[Any]) -> int:
    """Bring the schema up to date. Returns its version.

    Takes a connection in autocommit mode. Raises SchemaTooNew when the database is ahead of this engine.
    """
    migrations = load_migrations()
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        connection.execute(load_text("schema/ensure.sql"))
        found = schema_version(connection)
        if found > len(migrations):
            raise SchemaTooNew(
                f"the schema is at version {found}, this engine knows {len(migrations)}: upgrade it"
            )
        for migration in migrations[found:]:
            connection.execute(migration.text)
            connection.execute(
                "INSERT INTO pgreferee_migrations (version, name) VALUES (%s, %s)",
                (migration.version, migration.name),
            )
    return len(migrations)


def schema_version(connection: psycopg.Connection[Any]) -> int:
    """The last migration applied; 0 for an empty schema."""
    row = connection.execute("SELECT coalesce(max(version), 0) FROM pgreferee_migrations").fetchone()
    assert row is not None
    return int(row[0])
