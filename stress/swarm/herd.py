"""Nodes that begin at one moment: each looks after the schema when it boots, and waits until all have come so far.

The harness holds an advisory lock that every node asks for, shared; when as many wait as there are nodes it lets go.
A node that boots later finds the lock free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg

from engine.schema import migrate
from engine.statements import Area

# One arbitrary number; "herd" in ASCII.
HERD_LOCK = 0x68657264
WAITING = """
SELECT count(*) FROM pg_locks
WHERE
    locktype = 'advisory' AND NOT granted AND objid = %s
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
BOOT_DEADLINE_S = 20.0
PAUSE_S = 0.1


def migrate_at_once(dsn: str, areas: Sequence[Area], sessions: int) -> None:
    """So many sessions make one schema, all at the same time. Raises what the first of them raises that fails."""

    def one(_: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for area in areas:
                migrate(connection, area)

    with ThreadPoolExecutor(sessions) as threads:
        list(threads.map(one, range(sessions)))


@contextmanager
def held(connection: psycopg.Connection[Any]) -> Iterator[Callable[[], int]]:
    """Nobody gets past `boot_with_the_herd` within the block; yields how many wait there."""
    connection.execute("SELECT pg_advisory_lock(%s)", (HERD_LOCK,))
    try:
        yield lambda: _waiting(connection)
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (HERD_LOCK,))


def _waiting(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(WAITING, (HERD_LOCK,)).fetchone()
    assert row is not None
    return int(row[0])


def boot_with_the_herd(dsn: str, areas: Sequence[Area]) -> None:
    """In a node: look after the schema, and wait to be let go. A server that is down is waited for: raises
    psycopg.OperationalError when it stays so."""
    deadline = time.monotonic() + BOOT_DEADLINE_S
    while True:
        try:
            with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as connection:
                for area in areas:
                    migrate(connection, area)
                connection.execute("SELECT pg_advisory_lock_shared(%s)", (HERD_LOCK,))
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)
