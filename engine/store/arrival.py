"""Waiting for a server that starts at the same time as we do, and for nothing else.

The server says whether it is there (`PQping`, which needs no account); only while it is not, or is still starting up,
is there anything to wait for. A wrong password or database fails at once, with one sentence that holds no secret.
"""

from __future__ import annotations

import asyncio
import time

import psycopg
from psycopg.pq import Ping

from engine.errors import InfrastructureError
from engine.postgres.conninfo import describe, parse, reason

RETRIES, INTERVAL_S = 15, 1.0


def await_server(dsn: str, retries: int = RETRIES, interval_s: float = INTERVAL_S) -> None:
    """Return when a connection can be made. Raises InfrastructureError, UsageError for a DSN that cannot be read."""
    for left in reversed(range(retries)):
        if _try(dsn, left):
            return
        time.sleep(interval_s)


async def await_server_async(dsn: str, retries: int = RETRIES, interval_s: float = INTERVAL_S) -> None:
    """The asynchronous twin of `await_server`."""
    for left in reversed(range(retries)):
        if await asyncio.to_thread(_try, dsn, left):
            return
        await asyncio.sleep(interval_s)


def _try(dsn: str, left: int) -> bool:
    params = parse(dsn)
    there = _is_there(dsn)
    if there:
        try:
            psycopg.connect(dsn, autocommit=True).close()
        except psycopg.Error as error:
            failure = reason(error, params)
        else:
            return True
        # It was there before and is there now: another attempt would hear the same.
        there = _is_there(dsn)
    else:
        failure = "there is no server, or it does not accept connections yet"
    if there or not left:
        raise InfrastructureError(f"cannot connect to {describe(params)}: {failure}")
    return False


def _is_there(dsn: str) -> bool:
    return Ping(psycopg.pq.PGconn.ping(dsn.encode())) == Ping.OK
