"""`PostgresStore`: the store over one Postgres connection, for code that blocks.

    store = PostgresStore.from_dsn("postgresql://...")   # psycopg, one round trip per commit
    store = PostgresStore(connection)                    # your own, of any DB-API driver with `%s` parameters

Threads may share one: it has one connection, and a call waits for the one before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, Self, TypeVar

import psycopg

from engine import operation, sessions
from engine.operation import Operation
from engine.schema import migrate, migrate_within
from engine.statements import Catalogue
from engine.store import dbapi
from engine.store.arrival import INTERVAL_S, RETRIES, await_server
from engine.store.calls import Blocking
from engine.store.encoding import ROWS, TRACE_MAX
from engine.store.execution import (
    Commit,
    CommitOutcomeUnknown,
    ConflictUnexplained,
    Event,
    Execution,
    Page,
    Refusal,
    StoreConflict,
)
from engine.store.operations import QUESTIONS, Operations, sqlstate

Json = Any
T = TypeVar("T")

# SQLSTATE classes of a connection that is gone: connection exceptions, and a server that ends it.
_LOST = ("08", "57P")


class Driver(Protocol):
    """What runs operations, one at a time."""

    def run(self, operation: Operation[T]) -> T:
        """Run one to its end. Raises ConnectionLost where its outcome is unknown."""

    def close(self) -> None:
        """Hang up."""


class ConnectionLost(Exception):
    """The connection was lost before the server answered; `error` is what the driver said."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class PostgresStore(Blocking):
    """The store on Postgres. The constructor creates the schema, whoever else does so at the same time.

    `connection`: not in autocommit mode, with no transaction open; it is the store's from now on. `trace_max`: steps
    that a trace keeps, 1 or more.
    """

    def __init__(
        self,
        connection: dbapi.Connection,
        *,
        trace_max: int = TRACE_MAX,
        catalogue: Catalogue | None = None,
    ) -> None:
        self._operations = Operations(catalogue, trace_max=trace_max)
        self._driver: Driver = _Injected(connection)
        self._lock = threading.RLock()

    @classmethod
    def from_dsn(
        cls,
        dsn: str,
        *,
        retries: int = RETRIES,
        interval_s: float = INTERVAL_S,
        trace_max: int = TRACE_MAX,
        catalogue: Catalogue | None = None,
        name: str = "pgreferee store",
    ) -> Self:
        """Connect, waiting for a server that is not up yet. A connection that is lost is made anew by the next call.

        Raises InfrastructureError: at once for a wrong password or database, after `retries` attempts for no server.
        """
        store = cls.__new__(cls)
        store._operations = Operations(catalogue, trace_max=trace_max)
        await_server(dsn, retries, interval_s)
        store._driver = _Own(dsn, name)
        store._lock = threading.RLock()
        return store

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._driver.close()

    def load(self, execution_id: str) -> Execution | None:
        """The execution as it is stored, None where it never was."""
        return self._run(self._operations.load(execution_id))

    def load_for_event(self, execution_id: str, event_id: str) -> tuple[Execution | None, bool]:
        """The execution and whether it processed the event, at one moment, in one round trip; (None, False)."""
        return self._run(self._operations.load_for_event(execution_id, event_id))

    def is_processed(self, execution_id: str, event_id: str) -> bool:
        """Whether the event's effect on the execution was committed."""
        return self._run(self._operations.is_processed(execution_id, event_id))

    def _commit(self, commit: Commit) -> None:
        try:
            self._run_commit(self._operations.commit(commit))
        except ConnectionLost as lost:
            raise CommitOutcomeUnknown(commit.execution.id) from lost.error
        except ConflictUnexplained as conflict:
            raise self._explained(conflict) from None

    def commit_many(self, commits: Sequence[Commit]) -> list[Refusal | None]:
        """Many commits as if one came after the other; one answer each: None where it happened, else why not.

        One transaction and one round trip; n + 1 round trips where an execution has n > 1 commits. A commit
        that is refused harms no other. Raises ValueError for a batch above its limits.
        """
        try:
            answers = self._run_commit(self._operations.commit_many(commits))
        except ConnectionLost:
            return [CommitOutcomeUnknown(commit.execution.id) for commit in commits]
        return [self._explained(each) if isinstance(each, ConflictUnexplained) else each for each in answers]

    def pending_outbox(self, limit: int = ROWS) -> list[tuple[int, str | None, Event]]:
        """Undelivered events by seq: (seq, target_id, event)."""
        return self._run(self._operations.pending_outbox(limit))

    def ack_outbox(self, seq: int) -> None:
        """The event was delivered."""
        self._run(self._operations.ack_outbox(seq))

    def pending_spawns(self, limit: int = ROWS) -> list[tuple[int, str, str, str, dict[str, Json]]]:
        """Children yet to be made, by seq: (seq, parent_id, child_id, root_path, context)."""
        return self._run(self._operations.pending_spawns(limit))

    def ack_spawn(self, seq: int) -> None:
        """The child was made."""
        self._run(self._operations.ack_spawn(seq))

    def due_timers(self, now: float, limit: int = ROWS) -> list[tuple[str, str, float]]:
        """Timers due at `now` (seconds since the epoch), oldest first: (execution_id, path, fire_at)."""
        return self._run(self._operations.due_timers(now, limit))

    def delete_timer(self, execution_id: str, path: str, fire_at: float) -> None:
        """The timer was fired. One that was re-armed to another time stays; one re-armed to the same does not: who must
        tell them apart disarms it by a commit, as `StoreRelay.sweep` does."""
        self._run(self._operations.delete_timer(execution_id, path, fire_at))

    def append_trace(self, execution_id: str, entry: dict[str, Json]) -> None:
        """One step more, outside of any commit."""
        self._run(self._operations.append_trace(execution_id, entry))

    def read_trace(self, execution_id: str) -> list[dict[str, Json]]:
        """The last `trace_max` steps, oldest first, each with its "index"."""
        return self._run(self._operations.read_trace(execution_id))

    def list_executions(
        self,
        status: str | Iterable[str] | None = None,
        definition_id: str | None = None,
        roots_only: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """One page in id order. What is there throughout the paging comes exactly once, whatever comes and goes."""
        operation = self._operations.list_executions(status, definition_id, roots_only, limit, cursor)
        return self._run(operation)

    def _explained(self, conflict: ConflictUnexplained) -> StoreConflict:
        for _ in range(QUESTIONS):
            with suppress(Exception):  # whatever the driver calls it: that it was refused is known
                return self._run(self._operations.explain(conflict))
        return conflict

    def _run(self, operation: Operation[T]) -> T:
        try:
            return self._run_commit(operation)
        except ConnectionLost as lost:
            # A reading is to be asked again, and an ack or a trace's step that may be there twice does no harm.
            raise lost.error from None

    def _run_commit(self, operation: Operation[T]) -> T:
        with self._lock:
            return self._driver.run(operation)


class _Injected:
    """Somebody else's connection."""

    def __init__(self, connection: dbapi.Connection) -> None:
        self._connection = connection
        dbapi.prepare_session(connection)
        try:
            migrate_within(lambda sql, parameters: dbapi.execute(connection, sql, parameters), "store")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise

    def run(self, operation: Operation[T]) -> T:
        try:
            return dbapi.perform(self._connection, operation)
        except dbapi.CommitFailed as error:
            cause = error.error
            # Without a SQLSTATE it was not the server that spoke. Before `commit()` a loss is no question: nothing was.
            if (state := sqlstate(cause)) is None or state.startswith(_LOST):
                raise ConnectionLost(cause) from cause
            raise cause from None

    def close(self) -> None:
        self._connection.close()


class _Own:
    """A psycopg connection in autocommit mode, made anew where it was lost."""

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn, self._name = dsn, name
        self._closed = False
        self._connection = sessions.connect(dsn, name, sessions.INDEXED)
        migrate(self._connection, "store")

    def run(self, operation_: Operation[T]) -> T:
        if self._connection.closed:
            if self._closed:
                raise psycopg.InterfaceError("the store is closed")
            self._connection = sessions.connect(self._dsn, self._name, sessions.INDEXED)
        try:
            return operation.perform(self._connection, operation_)
        except psycopg.Error as error:
            if self._connection.closed:
                raise ConnectionLost(error) from error
            raise
        except BaseException as error:
            # Interrupted anywhere between the first byte and the last: only a new connection is beyond doubt.
            if not isinstance(error, Exception):
                self._connection.close()
            raise

    def close(self) -> None:
        self._closed = True
        self._connection.close()
