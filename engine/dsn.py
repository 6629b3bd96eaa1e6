"""The first connection: wait for a server that is still coming up, and fail at once where waiting cannot help.

A worker's container that starts together with Postgres comes up before it. Nothing listens yet, or the server says that
it is starting: both pass. A wrong password or a database that does not exist stay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg

from engine.schema import migrate
from engine.sessions import connect
from engine.statements import Area

RETRIES = 15
INTERVAL_S = 1.0
# What a server says while it comes up, goes down or is full. libpq hands out no SQLSTATE of a failed connection.
_PASSING = (
    "starting up",
    "shutting down",
    "not yet accepting",
    "recovery mode",
    "too many clients",
    "remaining",
)


def connect_patiently(
    dsn: str, name: str, *, retries: int = RETRIES, interval_s: float = INTERVAL_S
) -> psycopg.Connection[Any]:
    """A session as `engine.sessions.connect` opens it, tried up to `retries` times. Raises psycopg.Error."""
    for last in _attempts(retries):
        try:
            return connect(dsn, name)
        except psycopg.OperationalError as error:
            if last or not passes(error):
                raise
        time.sleep(interval_s)
    raise AssertionError("there is at least one attempt")


def prepare(
    dsn: str, area: Area, name: str, *, retries: int = RETRIES, interval_s: float = INTERVAL_S
) -> None:
    """Wait for the server, and bring an area's schema up to date. Raises psycopg.Error, SchemaTooNew."""
    with connect_patiently(dsn, name, retries=retries, interval_s=interval_s) as connection:
        migrate(connection, area)


def passes(error: psycopg.OperationalError) -> bool:
    """Whether another attempt may do better: nothing answered, or a server that comes up, goes down or is full."""
    text = str(error)
    return "FATAL" not in text or any(piece in text for piece in _PASSING)


def _attempts(retries: int) -> Iterator[bool]:
    for attempt in range(max(retries, 1)):
        yield attempt == max(retries, 1) - 1
