"""One process's share of an all-Postgres stack: a worker, a relay and a timer sweeper, over one database or several.

    stop = asyncio.Event()
    async with Stack(["postgresql://..."], charts) as stack:
        await stack.run(stop)

With one database everything is handed over within it. With several, executions are spread over them by their ids
(`engine.store.shards`), each database's timers are swept into its own outbox, and what is in an outbox is delivered at
least once to the database that its target lives in, by one process at a time (`engine.relay.across`). Any number of
processes may run the same stack; every one must name the same databases in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from engine.observer import LoggingObserver, Observer
from engine.relay import AsyncRelay, AsyncRelayAcross, AsyncStoreRelay, AsyncTimerSweeper, Polling
from engine.relay.handover import Handover
from engine.statechart.chart import Chart
from engine.statechart.step import start_event
from engine.statechart.worker import BATCH, LEASE_S, Worker
from engine.statements import Catalogue
from engine.store import AsyncShardedStore, Emit, Execution
from engine.store.encoding import TRACE_MAX
from engine.transport import AsyncShardedTransport
from engine.transport.queue import Queue

POOL_SIZE = 8


class Stack:
    """Open it with `async with`; then `run`. `observer` is told what worker, relay and sweeper do. For tests that break
    them, `catalogue`, `queue` and `handover`: statements and operations; `across`: the relay between databases."""

    def __init__(
        self,
        dsns: Sequence[str],
        charts: Iterable[Chart],
        *,
        batch: int = BATCH,
        lease_s: float = LEASE_S,
        pool_size: int = POOL_SIZE,
        polling: Polling | None = None,
        trace_max: int = TRACE_MAX,
        observer: Observer | None = None,
        catalogue: Catalogue | None = None,
        queue: Queue | None = None,
        handover: Handover | None = None,
        across: Callable[..., AsyncStoreRelay] = AsyncStoreRelay,
    ) -> None:
        self._trace_max, self._catalogue, self._queue, self._handover = trace_max, catalogue, queue, handover
        self._dsns, self._charts = tuple(dsns), tuple(charts)
        self._across = across
        self._batch, self._lease_s, self._pool_size = batch, lease_s, pool_size
        self._polling = Polling() if polling is None else polling
        self._observer: Observer = LoggingObserver() if observer is None else observer
        self._open = AsyncExitStack()
        self._loops: list[Callable[[asyncio.Event], Awaitable[None]]] = []

    async def __aenter__(self) -> Self:
        """Create the schema where there is none, and connect. Raises InfrastructureError."""
        async with AsyncExitStack() as opening:
            enter = opening.enter_async_context
            self.store = await enter(
                await AsyncShardedStore.from_dsns(
                    self._dsns,
                    pool_size=self._pool_size,
                    trace_max=self._trace_max,
                    catalogue=self._catalogue,
                )
            )
            self.transport = await enter(
                await AsyncShardedTransport.from_dsns(
                    self._dsns, pool_size=self._pool_size, observer=self._observer, queue=self._queue
                )
            )
            worker = Worker(
                self._charts,
                self.store,
                self.transport,
                batch=self._batch,
                lease_s=self._lease_s,
                polling=self._polling,
                observer=self._observer,
            )
            self._loops = [worker.run]
            loops: dict[str, Any] = {
                "polling": self._polling,
                "observer": self._observer,
                "handover": self._handover,
            }
            for dsn in self._dsns:
                sweeper = AsyncTimerSweeper(dsn, **loops)
                self._loops.append((await enter(sweeper)).run)
            if len(self._dsns) == 1:
                relay = AsyncRelay(self._dsns[0], **loops)
                self._loops.append((await enter(relay)).run)
            else:
                for place, dsn in enumerate(self._dsns):
                    across = AsyncRelayAcross(
                        dsn, place, self.store, self.transport, across=self._across, **loops
                    )
                    self._loops.append((await enter(across)).run)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._open.aclose()

    async def start(self, execution: Execution) -> None:
        """Save a new execution and have its start event delivered, both or neither. Errors as of the store's commit."""
        await self.store.commit(execution, emits=[Emit(execution.id, start_event(execution.id))])

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. What was begun is brought to its end. Where one part fails, all end."""
        parts = [asyncio.ensure_future(loop(stop)) for loop in self._loops]
        try:
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
