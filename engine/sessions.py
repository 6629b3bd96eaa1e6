"""A node's database sessions: a pool, and the rule that every operation is observed and every failure has a kind.

An operation whose connection broke has an unknown outcome: it may have committed. It is told to the observer as
`info` and raised as `OutcomeUnknown`; every other database error is a `fail`, the server's word that nothing happened.

A session whose client is silent between two statements of a transaction is ended by the server. A node that is frozen
or cut off there would keep its row locks for as long as its connection seems to live, and whoever must lock one of the
rows (a signal's delivery, a join, a flush with any of them in its batch) would wait as long (docs/findings.md, "locks
of a frozen node").
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from engine.observer import Observer
from engine.operation import Operation, perform, perform_async

T = TypeVar("T")

# How long an operation waits for a free session before it counts as not sent.
SESSION_TIMEOUT_S = 10.0


# A client that is busy with other things answers within that.
IDLE_IN_TRANSACTION_MS = 5_000
# What the statements are written for, and the silence that is allowed inside of a transaction; a server's, a database's
# or a role's defaults may be others. Text travels as UTF-8, and a number has all its digits: what was read as another
# one matches no row.
SETTINGS = (
    "SET default_transaction_isolation TO 'read committed'; SET client_encoding TO 'UTF8'; "
    f"SET extra_float_digits TO 1; SET idle_in_transaction_session_timeout TO {IDLE_IN_TRANSACTION_MS}"
)
# For tables that are small when a session makes its plans, and grow while it keeps them: a scan that costs nothing then
# is one of all rows later. Every statement of store, transport and relay has its index. What is switched off counts as
# dear before PostgreSQL 18, and dear plans are compiled first.
INDEXED = f"{SETTINGS}; SET enable_seqscan TO off; SET enable_bitmapscan TO off; SET jit TO off"


def connect(
    dsn: str,
    name: str,
    settings: str = SETTINGS,
    *,
    idle_in_transaction_ms: float = IDLE_IN_TRANSACTION_MS,
) -> psycopg.Connection[Any]:
    """A synchronous session for `engine.operation.perform`; `name` is its application_name. Raises psycopg.Error."""
    connection = psycopg.connect(dsn, autocommit=True, application_name=name, prepare_threshold=0)
    connection.execute(settings, prepare=False)
    connection.execute(_silence(idle_in_transaction_ms), prepare=False)
    return connection


async def configure(connection: psycopg.AsyncConnection[Any]) -> None:
    """Set up a pooled session for `engine.operation.perform_async`."""
    await connection.execute(SETTINGS, prepare=False)


async def configure_indexed(connection: psycopg.AsyncConnection[Any]) -> None:
    """As `configure`, for the statements of store, transport and relay."""
    await connection.execute(INDEXED, prepare=False)


def _silence(amount_ms: float) -> bytes:
    # Zero would mean for ever.
    return b"SET idle_in_transaction_session_timeout TO %d" % max(1, min(round(amount_ms), 2**31 - 1))


class OutcomeUnknown(Exception):
    """The connection was lost before the server answered."""


class Unavailable(Exception):
    """No session could be had: nothing was sent."""


class Session:
    """Runs operations on one connection, opened when it is needed. Threads may share it: one waits for another."""

    def __init__(self, dsn: str, observer: Observer, *, name: str, settings: str = SETTINGS) -> None:
        self._dsn, self._observer, self._name, self._settings = dsn, observer, name, settings
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None

    def close(self) -> None:
        """Hang up. The next operation connects again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def run(self, name: str, value: object, operation: Operation[T], report: Callable[[T], object]) -> T:
        """Run one operation, as `Sessions.run`. An interruption closes the connection: nobody knows what it holds."""
        with self._lock:
            if self._connection is None or self._connection.closed:
                try:
                    self._connection = connect(self._dsn, self._name, self._settings)
                except psycopg.OperationalError as error:
                    raise Unavailable(name) from error
            token = self._observer.invoke(name, value)
            try:
                result = perform(self._connection, operation)
            except BaseException as error:
                lost = not isinstance(error, Exception) or self._connection.closed
                self._observer.complete(token, "info" if lost else "fail", describe_error(error))
                if lost:
                    self._connection.close()
                    if isinstance(error, psycopg.Error):
                        raise OutcomeUnknown(name) from error
                raise
            self._observer.complete(token, "ok", report(result))
            return result


class Sessions:
    """Runs operations on pooled connections in autocommit mode. Open it with `async with`."""

    def __init__(
        self,
        dsn: str,
        observer: Observer,
        *,
        size: int,
        name: str,
        idle_in_transaction_ms: float = IDLE_IN_TRANSACTION_MS,
        configure: Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]] = configure,
    ) -> None:
        self._observer = observer

        async def configured(connection: psycopg.AsyncConnection[Any]) -> None:
            await configure(connection)
            await connection.execute(_silence(idle_in_transaction_ms), prepare=False)

        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] = AsyncConnectionPool(
            dsn,
            min_size=1,
            max_size=size,
            open=False,
            timeout=SESSION_TIMEOUT_S,
            configure=configured,
            kwargs={"autocommit": True, "application_name": name, "prepare_threshold": 0},
        )

    async def __aenter__(self) -> Self:
        await self._pool.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._pool.close()

    async def run(
        self, name: str, value: object, operation: Operation[T], report: Callable[[T], object]
    ) -> T:
        """Run one operation. `value` and `report(result)` are what the observer is told.

        Raises OutcomeUnknown, Unavailable, or the psycopg error with which the server refused.
        """
        try:
            async with self._pool.connection() as connection:
                token = self._observer.invoke(name, value)
                try:
                    result = await perform_async(connection, operation)
                except psycopg.Error as error:
                    lost = connection.closed or connection.broken
                    self._observer.complete(token, "info" if lost else "fail", describe_error(error))
                    if lost:
                        raise OutcomeUnknown(name) from error
                    raise
                except BaseException as error:
                    self._observer.complete(token, "info", describe_error(error))
                    raise
                self._observer.complete(token, "ok", report(result))
                return result
        except PoolTimeout as error:
            raise Unavailable(name) from error

    @asynccontextmanager
    async def within(self, name: str, opening: Operation[T], lost: str) -> AsyncIterator[T]:
        """A transaction that is open while the block runs, and what its first operation answered.

        Nothing is written in it: where it was lost meanwhile that is counted as `lost`, and no error. Raises
        Unavailable, or the psycopg error with which the server refused to begin.
        """
        try:
            async with AsyncExitStack() as stack:
                connection = await stack.enter_async_context(self._pool.connection())
                await connection.execute("BEGIN")
                yield await perform_async(connection, opening)
                try:
                    await connection.execute("COMMIT")
                except psycopg.Error:
                    self._observer.count(lost)
                    await connection.close()
        except PoolTimeout as error:
            raise Unavailable(name) from error


def describe_error(error: BaseException) -> dict[str, str | None]:
    """An error as plain data: class, SQLSTATE, first line of the message (no values, no connection string)."""
    lines = str(error).splitlines()
    return {
        "error": type(error).__name__,
        "sqlstate": getattr(error, "sqlstate", None),
        "message": lines[0] if lines else "",
    }
