"""Waiting for a server that starts at the same time as we do, and for nothing else.

The server says whether it is there (`PQping`, which needs no account); only while it is not, or is still starting up,
is there anything to wait for. A wrong password or database fails at once, with one sentence that holds no secret.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import Ping

from engine.errors import InfrastructureError
from engine.postgres.conninfo import describe, parse, reason

RETRIES, INTERVAL_S = 15, 1.0
# The least that libpq takes.
PING_TIMEOUT_S = 2


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
    failure = _connect(dsn, params)
    if failure is None:
        return True
    there = _is_there(params)
    # It may have come between the two questions.
    if there and (failure := _connect(dsn, params)) is None:
        return True
    if there or not left:
        raise InfrastructureError(f"cannot connect to {describe(params)}: {failure}")
    return False


def _connect(dsn: str, params: Mapping[str, str]) -> str | None:
    """Why no connection can be made, None where one can."""
    try:
        psycopg.connect(dsn, autocommit=True).close()
    except psycopg.Error as error:
        return reason(error, params)
    return None


def _is_there(params: Mapping[str, str]) -> bool:
    # The call holds up the whole process, so it is made only after a failure, and not for long.
    question = make_conninfo(**{**params, "connect_timeout": str(PING_TIMEOUT_S)})
    return Ping(psycopg.pq.PGconn.ping(question.encode())) == Ping.OK
