"""Operations: what the engine does, written once, driven by two thin drivers.

An operation is a generator. It yields what is to be sent, is sent the rows, and returns its result; it holds the
decisions (how often to retry a lost race, what a missing row means) and does no I/O. `perform` drives it over a
synchronous connection, `perform_async` over an asynchronous one. A database error is raised inside the operation at its
`yield`, so an operation handles a lost race with an ordinary `except`.

What an operation may yield:

1. A `Call`: one statement. Outside of a transaction it is a transaction of its own. It is answered with its rows.
2. `Begin()` and `Commit()`: what stands between them is one transaction. They are answered with no rows.
3. A tuple of those, sent together, in one round trip where the driver's libpq has a pipeline mode. It is answered with
   a list, one entry per member. No member can depend on another's answer; the first that fails ends the tuple. Of a
   tuple that leaves its transaction open the last member goes by itself: psycopg leaves a pipeline with a Sync and a
   Flush, and a server that is told to flush no longer counts the session as idle, so the time-out that bounds an open
   transaction (`engine.sessions`) would never come (docs/findings.md, "locks of a frozen node").

Who is interrupted while he waits for the server (a greenlet that is killed, a signal's handler that raises) loses the
connection: on one whose answers were left unread, the next question would get the answer to the last. psycopg makes an
error of its own of an interruption inside of a pipeline; `perform` raises the interruption.

On any error inside a transaction the driver rolls back before the operation sees the error. An operation that ends
inside of a transaction is a mistake of its author: the driver rolls back and raises AssertionError.

Connections must be in autocommit mode, and transactions READ COMMITTED: the statements rely on seeing what a lock's
former holder committed. `Begin` says so itself; for a single statement `engine.sessions.connect` opens such a session,
whatever the default of the server or the role is.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from engine.statements import Argument, Statement

Row = tuple[Any, ...]
T = TypeVar("T")

PIPELINE = psycopg.capabilities.has_pipeline()


@dataclass(frozen=True, slots=True)
class Call:
    """One statement with its arguments."""

    statement: Statement
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is to be durable."""


Request = Call | Begin | Commit
# What comes back depends on what was sent: rows, or a list of rows for a tuple. A generator's type cannot say so.
Operation = Generator[Request | tuple[Request, ...], Any, T]

_BEGIN, _COMMIT, _ROLLBACK = b"BEGIN ISOLATION LEVEL READ COMMITTED", b"COMMIT", b"ROLLBACK"


def call(statement: Statement, *arguments: Argument) -> Call:
    """A `Call`; reads like the function application it stands for."""
    return Call(statement, arguments)


def perform(connection: psycopg.Connection[Any], operation: Operation[T]) -> T:
    """Run an operation to its end on a connection in autocommit mode. Raises what the operation does not handle."""
    # A transaction that the caller has open is the caller's to end.
    outer = _in_transaction(connection)
    try:
        pending = next(operation)
        while True:
            try:
                answer = _send(connection, pending)
            except psycopg.Error as error:
                if not outer and _in_transaction(connection):
                    connection.execute(_ROLLBACK)
                pending = operation.throw(error)
            else:
                pending = operation.send(answer)
    except StopIteration as stop:
        assert outer or not _in_transaction(connection), "the operation ended inside of a transaction"
        result: T = stop.value
        return result
    finally:
        if not outer and _in_transaction(connection):
            connection.execute(_ROLLBACK)


async def perform_async(connection: psycopg.AsyncConnection[Any], operation: Operation[T]) -> T:
    """The asynchronous twin of `perform`."""
    # A transaction that the caller has open is the caller's to end.
    outer = _in_transaction(connection)
    try:
        pending = next(operation)
        while True:
            try:
                answer = await _send_async(connection, pending)
            except psycopg.Error as error:
                if not outer and _in_transaction(connection):
                    await connection.execute(_ROLLBACK)
                pending = operation.throw(error)
            else:
                pending = operation.send(answer)
    except StopIteration as stop:
        assert outer or not _in_transaction(connection), "the operation ended inside of a transaction"
        result: T = stop.value
        return result
    finally:
        if not outer and _in_transaction(connection):
            await connection.execute(_ROLLBACK)


def _send(connection: psycopg.Connection[Any], pending: Request | tuple[Request, ...]) -> object:
    settled, handled = _is_settled(connection), sys.exception()
    try:
        return _ask(connection, pending)
    except BaseException as error:
        if not settled or _is_settled(connection):
            raise
        connection.close()
        interruption = _interruption(error, handled)
        if interruption is None or interruption is error:
            raise
        raise interruption from None


def _is_settled(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether every question on it has been answered; a closed one has none."""
    pgconn = connection.pgconn
    return connection.closed or (
        pgconn.pipeline_status == PipelineStatus.OFF and pgconn.transaction_status != TransactionStatus.ACTIVE
    )


def _interruption(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """What is no error but an order to stop, and may stand behind an error; not what the caller was at already."""
    found: BaseException | None = error
    while found is not handled and isinstance(found, Exception):
        found = found.__context__
    return None if found is handled else found


def _ask(connection: psycopg.Connection[Any], pending: Request | tuple[Request, ...]) -> object:
    requests = _requests(pending)
    # All of them before any is sent: what cannot be sent leaves nothing behind.
    queries = [_query(request) for request in requests]
    with ExitStack() as stack:
        cursors = [stack.enter_context(psycopg.RawCursor(connection)) for _ in requests]
        for together in round_trips(requests, _in_transaction(connection)):
            with ExitStack() as pipeline:
                if PIPELINE and len(together) > 1:
                    pipeline.enter_context(connection.pipeline())
                for place in together:
                    query, arguments = queries[place]
                    cursors[place].execute(query, arguments, prepare=arguments is not None)
        answers = [cursor.fetchall() if cursor.description else [] for cursor in cursors]
    return answers if isinstance(pending, tuple) else answers[0]


async def _send_async(
    connection: psycopg.AsyncConnection[Any], pending: Request | tuple[Request, ...]
) -> object:
    settled, handled = _is_settled(connection), sys.exception()
    try:
        return await _ask_async(connection, pending)
    except BaseException as error:
        if not settled or _is_settled(connection):
            raise
        await connection.close()
        interruption = _interruption(error, handled)
        if interruption is None or interruption is error:
            raise
        raise interruption from None


async def _ask_async(
    connection: psycopg.AsyncConnection[Any], pending: Request | tuple[Request, ...]
) -> object:
    requests = _requests(pending)
    queries = [_query(request) for request in requests]
    async with AsyncExitStack() as stack:
        cursors = [await stack.enter_async_context(psycopg.AsyncRawCursor(connection)) for _ in requests]
        for together in round_trips(requests, _in_transaction(connection)):
            async with AsyncExitStack() as pipeline:
                if PIPELINE and len(together) > 1:
                    await pipeline.enter_async_context(connection.pipeline())
                for place in together:
                    query, arguments = queries[place]
                    await cursors[place].execute(query, arguments, prepare=arguments is not None)
        answers = [await cursor.fetchall() if cursor.description else [] for cursor in cursors]
    return answers if isinstance(pending, tuple) else answers[0]


def _requests(pending: Request | tuple[Request, ...]) -> Sequence[Request]:
    return pending if isinstance(pending, tuple) else (pending,)


def round_trips(requests: Sequence[Request], in_transaction: bool) -> tuple[range, ...]:
    """Which of the requests go together; see the module's third rule."""
    last = len(requests) - 1
    opened = in_transaction or any(isinstance(request, Begin) for request in requests)
    if opened and not isinstance(requests[last], Commit):
        return range(last), range(last, last + 1)
    return (range(last + 1),)


def _query(request: Request) -> tuple[bytes, list[str | None] | None]:
    match request:
        case Call(statement, arguments):
            return statement.query, statement.encode(arguments)
        case Begin():
            return _BEGIN, None
        case Commit():
            return _COMMIT, None


def _in_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return not connection.closed and connection.info.transaction_status in (
        TransactionStatus.INTRANS,
        TransactionStatus.INERROR,
    )
