"""Operations: what the engine does, written once, driven by two thin drivers.

An operation is a generator. It yields a `Call`, is sent the rows, and returns its result; it holds the decisions (how
often to retry a lost race, what a missing row means) and does no I/O. `perform` drives it over a synchronous
connection, `perform_async` over an asynchronous one. A database error is raised inside the operation at its `yield`,
so an operation handles a lost race with an ordinary `except`.

Connections must be in autocommit mode, where one `Call` is one transaction, and that transaction READ COMMITTED: the
statements rely on seeing what a lock's former holder committed. `engine.sessions.connect` opens such a session,
whatever the default of the server or the role is.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from engine.statements import Argument, Statement

Row = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One statement with its arguments, to be executed in a transaction of its own."""

    statement: Statement
    arguments: tuple[Argument, ...]


Operation = Generator[Call, list[Row], T]


def call(statement: Statement, *arguments: Argument) -> Call:
    """A `Call`; reads like the function application it stands for."""
    return Call(statement, arguments)


def perform(connection: psycopg.Connection[Any], operation: Operation[T]) -> T:
    """Run an operation to its end on a connection in autocommit mode. Raises what the operation does not handle."""
    with psycopg.RawCursor(connection) as cursor:
        try:
            pending = next(operation)
            while True:
                try:
                    cursor.execute(*_query(pending), prepare=True)
                    rows = cursor.fetchall()
                except psycopg.Error as error:
                    pending = operation.throw(error)
                else:
                    pending = operation.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result


async def perform_async(connection: psycopg.AsyncConnection[Any], operation: Operation[T]) -> T:
    """The asynchronous twin of `perform`."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        try:
            pending = next(operation)
            while True:
                try:
                    await cursor.execute(*_query(pending), prepare=True)
                    rows = await cursor.fetchall()
                except psycopg.Error as error:
                    pending = operation.throw(error)
                else:
                    pending = operation.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result


def _query(pending: Call) -> tuple[bytes, list[str | None]]:
    return pending.statement.query, pending.statement.encode(pending.arguments)
