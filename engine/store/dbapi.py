"""Operations over somebody else's connection: any DB-API 2.0 driver whose parameters are written `%s`.

Rules:

1. Nothing of the connection is used but `cursor()`, `commit()`, `rollback()` and `close()`, and of a cursor but
   `execute` and `fetchall`.
2. The driver opens a transaction with the first statement, as DB-API says; `Begin` is nothing then, `Commit` is
   `commit()`, and a statement outside of a transaction is followed by it: also a reading, or the connection would stay
   in it, see nothing new, and hold back the vacuum.
3. The transactions are READ COMMITTED, whatever the server's default is. A connection that is in autocommit mode, or
   that insists on another level, is refused: on the first a commit would be several transactions, on the second a lost
   race would be an error. Numbers have all their digits, and statements use their indexes, as in `engine.sessions`.
4. Whatever fails is rolled back before the operation sees the error.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any, Protocol

from engine.errors import UsageError
from engine.operation import Begin, Call, Commit, Operation, Request, Row, T
from engine.statements import Statement

# The driver's own encoding is the driver's.
_SETTINGS = ("extra_float_digits TO 1", "enable_seqscan TO off", "enable_bitmapscan TO off", "jit TO off")
_PARAMETER = re.compile(r"\$(\d+)(?=::)")


class Connection(Protocol):
    """What is used of a connection."""

    def cursor(self) -> Any: ...
    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...
    def close(self) -> Any: ...


class CommitFailed(Exception):
    """`commit()` raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def prepare_session(connection: Connection) -> None:
    """Set the session up, its transactions READ COMMITTED. Raises UsageError where they cannot be."""
    cursor = connection.cursor()
    cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
    for setting in _SETTINGS:
        cursor.execute(f"SET {setting}")
    connection.commit()
    cursor.execute("SELECT set_config('harel.in_transaction', 'yes', true)")
    cursor.execute(
        "SELECT current_setting('harel.in_transaction', true), current_setting('transaction_isolation')"
    )
    ((mark, isolation),) = cursor.fetchall()
    connection.rollback()
    if mark != "yes":
        raise UsageError(
            "the store needs a connection that is not in autocommit mode, or PostgresStore.from_dsn"
        )
    if isolation != "read committed":
        raise UsageError(
            f"the store needs transactions at READ COMMITTED; this connection begins them at {isolation}"
        )


def execute(connection: Connection, sql: str, parameters: Sequence[Any] | None) -> list[Row]:
    """One statement inside of the current transaction."""
    cursor = connection.cursor()
    if parameters is None:
        cursor.execute(sql)
    else:
        cursor.execute(sql, parameters)
    # DB-API tells by `description` whether there are rows, which not every wrapper passes on; text tells too.
    return [tuple(row) for row in cursor.fetchall()] if _answers(sql) else []


def perform(connection: Connection, operation: Operation[T]) -> T:
    """Run an operation to its end. Raises CommitFailed, and what the operation does not handle."""
    ended = False
    try:
        pending = next(operation)
        while True:
            try:
                answer = _send(connection, pending)
            except Exception as error:  # noqa: BLE001  # whatever the driver calls it
                _roll_back(connection)
                pending = operation.throw(error)
            else:
                pending = operation.send(answer)
    except StopIteration as stop:
        ended = True
        result: T = stop.value
        return result
    finally:
        if not ended:
            _roll_back(connection)


def format_style(statement: Statement) -> tuple[str, tuple[int, ...]]:
    """A statement's text with `%s`, and which argument goes to each of them."""
    order = tuple(int(number) - 1 for number in _PARAMETER.findall(statement.text))
    return _PARAMETER.sub("%s", statement.text.replace("%", "%%")), order


def _send(connection: Connection, pending: Request | tuple[Request, ...]) -> Any:
    if not isinstance(pending, tuple):
        answer = _one(connection, pending)
        # Outside of a transaction a statement is one of its own; `Begin` comes in tuples only.
        _commit(connection)
        return answer
    return [_one(connection, request) for request in pending]


def _one(connection: Connection, request: Request) -> list[Row]:
    match request:
        case Call(statement, arguments):
            text, order = format_style(statement)
            values = statement.encode(arguments)
            return execute(connection, text, [values[place] for place in order])
        case Begin():
            return []
        case Commit():
            _commit(connection)
            return []


def _commit(connection: Connection) -> None:
    try:
        connection.commit()
    except Exception as error:
        raise CommitFailed(error) from error


def _roll_back(connection: Connection) -> None:
    # A connection that cannot even do that is lost, and the error that brought us here says more.
    with contextlib.suppress(Exception):
        connection.rollback()


def _answers(sql: str) -> bool:
    return sql.lstrip().startswith(("SELECT", "WITH")) or " RETURNING " in sql
