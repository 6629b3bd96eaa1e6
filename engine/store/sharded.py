"""`ShardedStore` and `AsyncShardedStore`: one store out of several, each of which owns a set of executions.

    store = ShardedStore.from_dsns(["postgresql://a/state", "postgresql://b/state"])
    store = ShardedStore([PostgresStore.from_dsn(...), SqliteStore(...)])

Where what lives, and why it must not be moved: `engine.store.shards`. Methods and errors are those of `PostgresStore`,
with one difference: `commit_many` is one transaction per shard, so of a batch the commits of one shard may be there
while another shard's connection is lost; those are answered with CommitOutcomeUnknown. Where a shard raises something
else, the other shards' commits are carried out before it is raised, and a version that moved tells which those are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Self

from msgspec.structs import astuple

from engine.store.async_postgres import AsyncPostgresStore
from engine.store.calls import Awaiting, Blocking
from engine.store.contract import AsyncStore, Json, Outbox, Spawns, Store, Timers
from engine.store.encoding import ROWS, bounded
from engine.store.execution import Commit, Execution, Page, Refusal
from engine.store.operations import check_batch
from engine.store.postgres import PostgresStore
from engine.store.shards import (
    addressed,
    check_count,
    gathered,
    grouped,
    oldest,
    page_of,
    shard_of,
    shared_out,
    ticketed,
)


class ShardedStore(Blocking):
    """A store over several. It owns them, and closes them. Their number and order are for ever."""

    def __init__(self, stores: Sequence[Store]) -> None:
        check_count(len(stores))
        self._stores = tuple(stores)

    @classmethod
    def from_dsns(cls, dsns: Sequence[str], **options: Any) -> Self:
        """A `PostgresStore` for each DSN; `options` are those of its `from_dsn`."""
        check_count(len(dsns))
        with ExitStack() as opened:
            stores = [opened.enter_context(PostgresStore.from_dsn(dsn, **options)) for dsn in dsns]
            opened.pop_all()
        return cls(stores)

    def close(self) -> None:
        """Close all."""
        for store in self._stores:
            store.close()

    def load(self, execution_id: str) -> Execution | None:
        """As `PostgresStore.load`."""
        return self._of(execution_id).load(execution_id)

    def load_for_event(self, execution_id: str, event_id: str) -> tuple[Execution | None, bool]:
        """As `PostgresStore.load_for_event`."""
        return self._of(execution_id).load_for_event(execution_id, event_id)

    def is_processed(self, execution_id: str, event_id: str) -> bool:
        """As `PostgresStore.is_processed`."""
        return self._of(execution_id).is_processed(execution_id, event_id)

    def _commit(self, commit: Commit) -> None:
        self._of(commit.execution.id).commit(*astuple(commit))

    def commit_many(self, commits: Sequence[Commit]) -> list[Refusal | None]:
        """As `PostgresStore.commit_many`, one transaction per shard."""
        check_batch(commits)
        groups = self._groups(commits)
        outcomes: list[Sequence[Refusal | None] | Exception] = []
        for shard, places in groups.items():
            try:
                outcomes.append(self._stores[shard].commit_many([commits[place] for place in places]))
            except Exception as error:  # noqa: BLE001  # whatever it is, the others have their turn first
                outcomes.append(error)
        return gathered(groups.values(), outcomes)

    def pending_outbox(self, limit: int = ROWS) -> Outbox:
        """As `PostgresStore.pending_outbox`."""
        return shared_out(
            [ticketed(*each) for each in enumerate(s.pending_outbox(limit) for s in self._stores)], limit
        )

    def ack_outbox(self, seq: int) -> None:
        """As `PostgresStore.ack_outbox`."""
        shard, own = addressed(seq, len(self._stores))
        self._stores[shard].ack_outbox(own)

    def pending_spawns(self, limit: int = ROWS) -> Spawns:
        """As `PostgresStore.pending_spawns`."""
        return shared_out(
            [ticketed(*each) for each in enumerate(s.pending_spawns(limit) for s in self._stores)], limit
        )

    def ack_spawn(self, seq: int) -> None:
        """As `PostgresStore.ack_spawn`."""
        shard, own = addressed(seq, len(self._stores))
        self._stores[shard].ack_spawn(own)

    def due_timers(self, now: float, limit: int = ROWS) -> Timers:
        """As `PostgresStore.due_timers`."""
        return oldest([store.due_timers(now, limit) for store in self._stores], limit)

    def delete_timer(self, execution_id: str, path: str, fire_at: float) -> None:
        """As `PostgresStore.delete_timer`."""
        self._of(execution_id).delete_timer(execution_id, path, fire_at)

    def append_trace(self, execution_id: str, entry: dict[str, Json]) -> None:
        """As `PostgresStore.append_trace`."""
        self._of(execution_id).append_trace(execution_id, entry)

    def read_trace(self, execution_id: str) -> list[dict[str, Json]]:
        """As `PostgresStore.read_trace`."""
        return self._of(execution_id).read_trace(execution_id)

    def list_executions(
        self,
        status: str | Iterable[str] | None = None,
        definition_id: str | None = None,
        roots_only: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """As `PostgresStore.list_executions`, across all shards in id order."""
        status = _kept(status)
        pages = [
            store.list_executions(status, definition_id, roots_only, bounded(limit), cursor)
            for store in self._stores
        ]
        return page_of(pages, limit)

    def _of(self, execution_id: str) -> Store:
        return self._stores[shard_of(execution_id, len(self._stores))]

    def _groups(self, commits: Sequence[Commit]) -> dict[int, list[int]]:
        return grouped([shard_of(commit.execution.id, len(self._stores)) for commit in commits])


class AsyncShard:
    """One shard's outbox and spawns, under the seqs by which the whole store knows them."""

    def __init__(self, store: AsyncStore, place: int) -> None:
        self._store, self._place = store, place

    async def pending_outbox(self, limit: int = ROWS) -> Outbox:
        """As `PostgresStore.pending_outbox`."""
        return ticketed(self._place, await self._store.pending_outbox(limit))

    async def pending_spawns(self, limit: int = ROWS) -> Spawns:
        """As `PostgresStore.pending_spawns`."""
        return ticketed(self._place, await self._store.pending_spawns(limit))


class AsyncShardedStore(Awaiting):
    """The asynchronous twin of `ShardedStore`: what concerns all shards is asked of all at once."""

    def __init__(self, stores: Sequence[AsyncStore]) -> None:
        check_count(len(stores))
        self._stores = tuple(stores)
        self.shards = tuple(AsyncShard(store, place) for place, store in enumerate(stores))

    @classmethod
    async def from_dsns(cls, dsns: Sequence[str], **options: Any) -> Self:
        """An `AsyncPostgresStore` for each DSN; `options` are those of its `from_dsn`."""
        check_count(len(dsns))
        async with AsyncExitStack() as opened:
            stores = [
                await opened.enter_async_context(await AsyncPostgresStore.from_dsn(dsn, **options))
                for dsn in dsns
            ]
            opened.pop_all()
        return cls(stores)

    async def close(self) -> None:
        """Close all."""
        for store in self._stores:
            await store.close()

    async def load(self, execution_id: str) -> Execution | None:
        """As `PostgresStore.load`."""
        return await self._of(execution_id).load(execution_id)

    async def load_for_event(self, execution_id: str, event_id: str) -> tuple[Execution | None, bool]:
        """As `PostgresStore.load_for_event`."""
        return await self._of(execution_id).load_for_event(execution_id, event_id)

    async def is_processed(self, execution_id: str, event_id: str) -> bool:
        """As `PostgresStore.is_processed`."""
        return await self._of(execution_id).is_processed(execution_id, event_id)

    async def _commit(self, commit: Commit) -> None:
        await self._of(commit.execution.id).commit(*astuple(commit))

    async def commit_many(self, commits: Sequence[Commit]) -> list[Refusal | None]:
        """As `ShardedStore.commit_many`."""
        check_batch(commits)
        groups = grouped([shard_of(commit.execution.id, len(self._stores)) for commit in commits])
        outcomes = await asyncio.gather(
            *(
                self._stores[shard].commit_many([commits[place] for place in places])
                for shard, places in groups.items()
            ),
            return_exceptions=True,
        )
        return gathered(groups.values(), outcomes)

    async def pending_outbox(self, limit: int = ROWS) -> Outbox:
        """As `PostgresStore.pending_outbox`."""
        answers = await asyncio.gather(*(shard.pending_outbox(limit) for shard in self.shards))
        return shared_out(answers, limit)

    async def ack_outbox(self, seq: int) -> None:
        """As `PostgresStore.ack_outbox`."""
        shard, own = addressed(seq, len(self._stores))
        await self._stores[shard].ack_outbox(own)

    async def pending_spawns(self, limit: int = ROWS) -> Spawns:
        """As `PostgresStore.pending_spawns`."""
        answers = await asyncio.gather(*(shard.pending_spawns(limit) for shard in self.shards))
        return shared_out(answers, limit)

    async def ack_spawn(self, seq: int) -> None:
        """As `PostgresStore.ack_spawn`."""
        shard, own = addressed(seq, len(self._stores))
        await self._stores[shard].ack_spawn(own)

    async def due_timers(self, now: float, limit: int = ROWS) -> Timers:
        """As `PostgresStore.due_timers`."""
        return oldest(await asyncio.gather(*(store.due_timers(now, limit) for store in self._stores)), limit)

    async def delete_timer(self, execution_id: str, path: str, fire_at: float) -> None:
        """As `PostgresStore.delete_timer`."""
        await self._of(execution_id).delete_timer(execution_id, path, fire_at)

    async def append_trace(self, execution_id: str, entry: dict[str, Json]) -> None:
        """As `PostgresStore.append_trace`."""
        await self._of(execution_id).append_trace(execution_id, entry)

    async def read_trace(self, execution_id: str) -> list[dict[str, Json]]:
        """As `PostgresStore.read_trace`."""
        return await self._of(execution_id).read_trace(execution_id)

    async def list_executions(
        self,
        status: str | Iterable[str] | None = None,
        definition_id: str | None = None,
        roots_only: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """As `ShardedStore.list_executions`."""
        status = _kept(status)
        pages = await asyncio.gather(
            *(
                store.list_executions(status, definition_id, roots_only, bounded(limit), cursor)
                for store in self._stores
            )
        )
        return page_of(pages, limit)

    def _of(self, execution_id: str) -> AsyncStore:
        return self._stores[shard_of(execution_id, len(self._stores))]


def _kept(status: str | Iterable[str] | None) -> str | list[str] | None:
    # Every shard reads it.
    return status if status is None or isinstance(status, str) else list(status)
