"""The schema comes up once, whoever and however many create it."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest

from engine.postgres import Server, conninfo
from engine.schema import SchemaTooNew, WrongEncoding, migrate, schema_version
from engine.statements import AREAS, Area

_MIGRATE = """
import sys, psycopg
from engine.schema import migrate
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    sys.stdin.readline()
    print(migrate(connection, sys.argv[2]))
"""


@pytest.mark.parametrize("area", AREAS)
def test_eight_processes_may_migrate_at_once(database: str, area: Area) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _MIGRATE, database, area],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    with psycopg.connect(database, autocommit=True) as connection:
        # All of them are connected and stand at the line before one is let go.
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        while connection.execute(waiting).fetchone() != (9,):
            assert all(process.poll() is None for process in processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=60) for process in processes]
        latest = schema_version(connection, area)

    assert answers == [(f"{latest}\n", "")] * 8


def test_migrating_again_changes_nothing(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        first = migrate(connection)
        before = connection.execute("SELECT * FROM pgreferee_migrations").fetchall()

        assert migrate(connection) == first
        assert connection.execute("SELECT * FROM pgreferee_migrations").fetchall() == before


def test_a_schema_of_a_later_engine_is_refused_and_left_alone(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        latest = migrate(connection)
        connection.execute(
            "INSERT INTO pgreferee_migrations (area, version, name) VALUES ('picker', %s, 'later')",
            (latest + 1,),
        )

        with pytest.raises(SchemaTooNew, match=f"version {latest + 1}"):
            migrate(connection)
        assert schema_version(connection) == latest + 1


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_every_text_is_refused_and_left_alone(
    server: Server, database: str, encoding: str
) -> None:
    name = f"{conninfo.parse(database)['dbname']}_{encoding.lower()}"
    options = f"TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    with psycopg.connect(database, autocommit=True) as beside:
        beside.execute(f"CREATE DATABASE {name} {options}".encode())
        try:
            with psycopg.connect(conninfo.with_database(database, name), autocommit=True) as connection:
                for area in AREAS:
                    with pytest.raises(WrongEncoding, match=f"encoding is {encoding}.* ENCODING 'UTF8'"):
                        migrate(connection, area)
                assert connection.execute("SELECT to_regclass('pgreferee_migrations')").fetchone() == (None,)
        finally:
            beside.execute(f"DROP DATABASE {name}".encode())


def test_a_migration_that_fails_leaves_nothing_behind(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE signals (mine int)")

        with pytest.raises(psycopg.errors.DuplicateTable):
            migrate(connection)
        assert connection.execute(
            "SELECT to_regclass('gen_durable'), to_regclass('pgreferee_migrations')"
        ).fetchone() == (None, None)
