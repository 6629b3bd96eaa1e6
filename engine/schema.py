"""The schema: for each area numbered migrations, applied in order and recorded in `pgreferee_migrations`.

The areas are independent: a database may hold the picker's tables, the store's, or both.

Any number of processes may migrate at once: a transaction-level advisory lock, taken before anything else, lets one
work and the others find the work done. `CREATE TABLE IF NOT EXISTS` alone is no such thing: two sessions that both find
no table meet at the catalogue's unique indexes, and one of them fails. Each migration commits together with its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from engine.errors import InfrastructureError
from engine.statements import Area, load_migrations, load_text

# One arbitrary number for all processes; "pgrf" in ASCII.
MIGRATION_LOCK = 0x70677266


# SQL and its parameters in, rows out.
Execute = Callable[[str, Sequence[Any] | None], Sequence[Any]]


class SchemaTooNew(InfrastructureError):
    """The database holds a migration that this version of the engine does not know."""


class WrongEncoding(InfrastructureError):
    """The database cannot hold every text: its encoding is not UTF8."""


def migrate(connection: psycopg.Connection[Any], area: Area = "picker") -> int:
    """Bring an area's schema up to date. Returns its version.

    Takes a connection in autocommit mode. Raises SchemaTooNew when the database is ahead of this engine, WrongEncoding
    when it is not in UTF8, and changes nothing then.
    """

    def execute(sql: str, parameters: Sequence[Any] | None) -> Sequence[Any]:
        cursor: psycopg.Cursor[Any] = connection.execute(
            sql, parameters, prepare=None if parameters else False
        )
        return cursor.fetchall() if cursor.description else []

    with connection.transaction():
        return migrate_within(execute, area)


def migrate_within(execute: Execute, area: Area) -> int:
    """As `migrate`, in a transaction that `execute` has begun with nothing yet, and that its owner commits.

    `execute(sql, parameters)` answers with the rows; `parameters` is None for several statements in one text.
    """
    migrations = load_migrations(area)
    # At another level, which may be the server's default, the snapshot would be older than the lock.
    execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", None)
    _check_encoding(execute)
    execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
    execute(load_text("schema/ensure.sql"), None)
    found = _version(execute, area)
    if found > len(migrations):
        raise SchemaTooNew(
            f"the {area}'s schema is at version {found}, this engine knows {len(migrations)}: upgrade it"
        )
    for migration in migrations[found:]:
        execute(migration.text, None)
        execute(
            "INSERT INTO pgreferee_migrations (area, version, name) VALUES (%s, %s, %s)",
            (area, migration.version, migration.name),
        )
    return len(migrations)


def _check_encoding(execute: Execute) -> None:
    """In another encoding a batch would fail on one job's text; in SQL_ASCII the server would not even look."""
    [[found]] = execute("SELECT current_setting('server_encoding')", None)
    # From a database in SQL_ASCII psycopg answers with bytes.
    encoding = found.decode() if isinstance(found, bytes) else str(found)
    if encoding != "UTF8":
        raise WrongEncoding(
            f"the database's encoding is {encoding}, in which not every text can be stored: make one with "
            "CREATE DATABASE ... TEMPLATE template0 ENCODING 'UTF8'"
        )


def schema_version(connection: psycopg.Connection[Any], area: Area = "picker") -> int:
    """The last migration of an area that was applied; 0 where none was."""
    return _version(lambda sql, parameters: connection.execute(sql, parameters).fetchall(), area)


def _version(execute: Execute, area: Area) -> int:
    rows = execute("SELECT coalesce(max(version), 0) FROM pgreferee_migrations WHERE area = %s", (area,))
    return int(rows[0][0])
