"""`AsyncShardedTransport`: one transport out of several, each of which owns a set of groups.

A group lives where the store keeps the execution of that name (`engine.store.shards`), so that with as many databases
of one order a worker's claim, load, commit and acknowledgement of one execution all go to the same one. A seq is its
shard's own: it always travels with its group. Calls are sent to all shards they concern at once; where one of them
fails, the others' calls have happened all the same, and the first error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import chain
from typing import Any, Self, TypeVar

from engine.store.execution import Event
from engine.store.shards import check_count, gathered, grouped, shard_of
from engine.transport.clients import Ack, AsyncPostgresTransport, Item
from engine.transport.queue import LEASE_S, Message, Publication

T = TypeVar("T")


class AsyncShardedTransport:
    """Routes by group. It owns its transports, and closes them. Their number and order are for ever."""

    def __init__(self, transports: Sequence[AsyncPostgresTransport]) -> None:
        check_count(len(transports))
        self._transports = tuple(transports)
        self._first = 0

    @classmethod
    async def from_dsns(cls, dsns: Sequence[str], **options: Any) -> Self:
        """An `AsyncPostgresTransport` for each DSN, open; `options` are those of its `from_dsn`."""
        check_count(len(dsns))
        async with AsyncExitStack() as opened:
            transports = [
                await opened.enter_async_context(await AsyncPostgresTransport.from_dsn(dsn, **options))
                for dsn in dsns
            ]
            opened.pop_all()
        return cls(transports)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all."""
        await _together(transport.close() for transport in self._transports)

    async def publish(self, group_id: str, event: Event | str, priority: int | None = None) -> int:
        """As `AsyncPostgresTransport.publish`."""
        return await self._of(group_id).publish(group_id, event, priority)

    async def publish_many(self, items: Iterable[Item]) -> list[int]:
        """As `AsyncPostgresTransport.publish_many`, all or none per shard."""
        publications = [item if isinstance(item, Publication) else Publication(*item) for item in items]
        return await self._routed(
            [each.group_id for each in publications],
            lambda transport, places: transport.publish_many([publications[place] for place in places]),
        )

    async def claim_many(
        self, limit: int, *, lease: float = LEASE_S, token: str | None = None, min_priority: int = 0
    ) -> list[Message]:
        """Lease up to `limit` groups, as evenly from all shards as they have them."""
        count = len(self._transports)
        self._first = (self._first + 1) % count
        turns = [(self._first + place) % count for place in range(count)]
        shares = [limit // count + (place < limit % count) for place in range(count)]
        found = await _together(
            self._transports[turn].claim_many(share, lease=lease, token=token, min_priority=min_priority)
            for turn, share in zip(turns, shares, strict=True)
            if share
        )
        return list(chain.from_iterable(found))

    async def ack_many(self, items: Sequence[Ack]) -> list[bool]:
        """As `AsyncPostgresTransport.ack_many`."""
        groups = [item.group_id if isinstance(item, Message) else item[0] for item in items]
        return await self._routed(
            groups, lambda transport, places: transport.ack_many([items[place] for place in places])
        )

    async def nack(self, group_id: str, token: str, delay: float = 0.0) -> bool:
        """As `AsyncPostgresTransport.nack`."""
        return await self._of(group_id).nack(group_id, token, delay)

    async def extend(self, group_id: str, token: str, lease: float = LEASE_S) -> bool:
        """As `AsyncPostgresTransport.extend`."""
        return await self._of(group_id).extend(group_id, token, lease)

    async def depth(self, group_id: str | None = None) -> int:
        """As `AsyncPostgresTransport.depth`."""
        if group_id is not None:
            return await self._of(group_id).depth(group_id)
        return sum(await _together(transport.depth() for transport in self._transports))

    def _of(self, group_id: str) -> AsyncPostgresTransport:
        return self._transports[shard_of(group_id, len(self._transports))]

    async def _routed(self, groups: Sequence[str], send: Any) -> list[Any]:
        places = grouped([shard_of(group, len(self._transports)) for group in groups])
        found = await _together(send(self._transports[shard], mine) for shard, mine in places.items())
        return gathered(places.values(), found)


async def _together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The answers, when all have ended. Raises the first error, then."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]
