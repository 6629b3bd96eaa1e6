"""A started server is what it says it is."""

from __future__ import annotations

import psycopg

from engine.postgres import Server


def test_each_test_gets_an_empty_marked_database(server: Server, database: str) -> None:
    with psycopg.connect(database) as conn:
        assert conn.execute(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchone() == (0,)
    assert database != server.dsn
