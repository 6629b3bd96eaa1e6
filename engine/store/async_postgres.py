"""`AsyncPostgresStore`: the store over a pool of Postgres connections, for code that awaits.

    store = await AsyncPostgresStore.from_dsn("postgresql://...", pool_size=10)

Each operation has a connection of its own, so as many run at once as the pool is large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from engine import sessions
from engine.operation import Operation, perform_async
from engine.schema import migrate
from engine.statements import Catalogue
from engine.store.arrival import INTERVAL_S, RETRIES, await_server_async
from engine.store.calls import Awaiting
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
from engine.store.operations import QUESTIONS, Operations
from engine.store.postgres import ConnectionLost

Json = Any
T = TypeVar("T")
Pool = AsyncConnectionPool[psycopg.AsyncConnection[Any]]

POOL_SIZE = 10
# How long an operation waits for a free connection before it raises psycopg_pool.PoolTimeout: nothing was sent then.
POOL_TIMEOUT_S = 30.0


class AsyncPostgresStore(Awaiting):
    """The asynchronous twin of `PostgresStore`; made by `from_dsn`. Errors and results are the same.

    A cancelled operation has its connection thrown away, not given back: what it was in the midst of is the server's to
    end. Its commit may have happened all the same; the execution's version is the old one.
    """

    def __init__(self, pool: Pool, *, trace_max: int = TRACE_MAX, catalogue: Catalogue | None = None) -> None:
        self._pool = pool
        self._operations = Operations(catalogue, trace_max=trace_max)

    @classmethod
    async def from_dsn(
        cls,
        dsn: str,
        *,
        pool_size: int = POOL_SIZE,
        retries: int = RETRIES,
        interval_s: float = INTERVAL_S,
        trace_max: int = TRACE_MAX,
        catalogue: Catalogue | None = None,
        name: str = "pgreferee store",
    ) -> Self:
        """Connect, waiting for a server that is not up yet, and create the schema. Errors as of `PostgresStore`."""
        pool: Pool = AsyncConnectionPool(
            dsn,
            min_size=1,
            max_size=pool_size,
            open=False,
            timeout=POOL_TIMEOUT_S,
            configure=sessions.configure_indexed,
            kwargs={"autocommit": True, "application_name": name, "prepare_threshold": 0},
        )
        store = cls(pool, trace_max=trace_max, catalogue=catalogue)
        await await_server_async(dsn, retries, interval_s)
        await asyncio.to_thread(_migrate, dsn, name)
        await pool.open(wait=True, timeout=POOL_TIMEOUT_S)
        return store

    async def close(self) -> None:
        """Hang up."""
        await self._pool.close()

    async def load(self, execution_id: str) -> Execution | None:
        """As `PostgresStore.load`."""
        return await self._run(self._operations.load(execution_id))

    async def load_for_event(self, execution_id: str, event_id: str) -> tuple[Execution | None, bool]:
        """As `PostgresStore.load_for_event`."""
        return await self._run(self._operations.load_for_event(execution_id, event_id))

    async def is_processed(self, execution_id: str, event_id: str) -> bool:
        """As `PostgresStore.is_processed`."""
        return await self._run(self._operations.is_processed(execution_id, event_id))

    async def _commit(self, commit: Commit) -> None:
        try:
            await self._run_commit(self._operations.commit(commit))
        except ConnectionLost as lost:
            raise CommitOutcomeUnknown(commit.execution.id) from lost.error
        except ConflictUnexplained as conflict:
            raise await self._explained(conflict) from None

    async def commit_many(self, commits: Sequence[Commit]) -> list[Refusal | None]:
        """As `PostgresStore.commit_many`."""
        try:
            answers = await self._run_commit(self._operations.commit_many(commits))
        except ConnectionLost:
            return [CommitOutcomeUnknown(commit.execution.id) for commit in commits]
        return [
            await self._explained(each) if isinstance(each, ConflictUnexplained) else each for each in answers
        ]

    async def pending_outbox(self, limit: int = ROWS) -> list[tuple[int, str | None, Event]]:
        """As `PostgresStore.pending_outbox`."""
        return await self._run(self._operations.pending_outbox(limit))

    async def ack_outbox(self, seq: int) -> None:
        """As `PostgresStore.ack_outbox`."""
        await self._run(self._operations.ack_outbox(seq))

    async def pending_spawns(self, limit: int = ROWS) -> list[tuple[int, str, str, str, dict[str, Json]]]:
        """As `PostgresStore.pending_spawns`."""
        return await self._run(self._operations.pending_spawns(limit))

    async def ack_spawn(self, seq: int) -> None:
        """As `PostgresStore.ack_spawn`."""
        await self._run(self._operations.ack_spawn(seq))

    async def due_timers(self, now: float, limit: int = ROWS) -> list[tuple[str, str, float]]:
        """As `PostgresStore.due_timers`."""
        return await self._run(self._operations.due_timers(now, limit))

    async def delete_timer(self, execution_id: str, path: str, fire_at: float) -> None:
        """As `PostgresStore.delete_timer`."""
        await self._run(self._operations.delete_timer(execution_id, path, fire_at))

    async def append_trace(self, execution_id: str, entry: dict[str, Json]) -> None:
        """As `PostgresStore.append_trace`."""
        await self._run(self._operations.append_trace(execution_id, entry))

    async def read_trace(self, execution_id: str) -> list[dict[str, Json]]:
        """As `PostgresStore.read_trace`."""
        return await self._run(self._operations.read_trace(execution_id))

    async def list_executions(
        self,
        status: str | Iterable[str] | None = None,
        definition_id: str | None = None,
        roots_only: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """As `PostgresStore.list_executions`."""
        operation = self._operations.list_executions(status, definition_id, roots_only, limit, cursor)
        return await self._run(operation)

    async def _explained(self, conflict: ConflictUnexplained) -> StoreConflict:
        for _ in range(QUESTIONS):
            try:
                return await self._run(self._operations.explain(conflict))
            except PoolTimeout:
                # It has waited long enough.
                break
            except psycopg.Error:
                continue
        return conflict

    async def _run(self, operation: Operation[T]) -> T:
        try:
            return await self._run_commit(operation)
        except ConnectionLost as lost:
            raise lost.error from None

    async def _run_commit(self, operation: Operation[T]) -> T:
        async with self._pool.connection() as connection:
            try:
                return await perform_async(connection, operation)
            except psycopg.Error as error:
                if connection.closed:
                    raise ConnectionLost(error) from error
                raise
            except BaseException as error:
                if not isinstance(error, Exception):
                    await connection.close()
                raise


def _migrate(dsn: str, name: str) -> None:
    with sessions.connect(dsn, name) as connection:
        migrate(connection, "store")
