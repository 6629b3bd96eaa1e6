"""The schema: for each area numbered migrations, applied in order and recorded in `pgreferee_migrations`.

The areas are independent: a database may hold the picker's tables, the store's, or both.

Any number of processes may migrate at once: a transaction-level advisory lock, taken before anything else, lets one
work and the others find the work done. `CREATE TABLE IF NOT EXISTS` alone is no such thing: two sessions that both find
no table meet at the catalogue's unique indexes, and one of them fails. Each migration commits together with its record.
"""

from __future__ import annotations

from typing import Any

import psycopg

from engine.statements import Area, load_migrations, load_text

# One arbitrary number for all processes; "pgrf" in ASCII.
MIGRATION_LOCK = 0x70677266


class SchemaTooNew(Exception):
    """The database holds a migration that this version of the engine does not know."""


def migrate(connection: psycopg.Connection[Any], area: Area = "picker") -> int:
    """Bring an area's schema up to date. Returns its version.

    Takes a connection in autocommit mode. Raises SchemaTooNew when the database is ahead of this engine.
    """
    migrations = load_migrations(area)
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        connection.execute(load_text("schema/ensure.sql"))
        found = schema_version(connection, area)
        if found > len(migrations):
            raise SchemaTooNew(
                f"the {area}'s schema is at version {found}, this engine knows {len(migrations)}: upgrade it"
            )
        for migration in migrations[found:]:
            connection.execute(migration.text)
            connection.execute(
                "INSERT INTO pgreferee_migrations (area, version, name) VALUES (%s, %s, %s)",
                (area, migration.version, migration.name),
            )
    return len(migrations)


def schema_version(connection: psycopg.Connection[Any], area: Area = "picker") -> int:
    """The last migration of an area that was applied; 0 where none was."""
    row = connection.execute(
        "SELECT coalesce(max(version), 0) FROM pgreferee_migrations WHERE area = %s", (area,)
    ).fetchone()
    assert row is not None
    return int(row[0])
