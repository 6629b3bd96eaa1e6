"""The relay between databases: each row once while nobody dies, and who dies or is frozen keeps it from nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest

from engine.operation import perform
from engine.postgres import Server, fresh_database
from engine.relay import AsyncRelayAcross
from engine.relay.handover import Handover
from engine.sessions import Sessions
from engine.store import AsyncShardedStore, CommitOutcomeUnknown, Emit, Event, Execution, Spawn
from engine.store.shards import shard_of
from engine.transport.sharded import AsyncShardedTransport
from stress.scripts.node import Notes

# One of each shard.
HERE, THERE = (next(f"e{n}" for n in range(99) if shard_of(f"e{n}", 2) == shard) for shard in (0, 1))
DEADLINE_S = 60


@pytest.fixture
def dsns(server: Server) -> Iterator[list[str]]:
    with ExitStack() as databases:
        yield [databases.enter_context(fresh_database(server)) for _ in range(2)]


class Bench:
    """A store and a transport over two databases, and as many relays of the first as a test asks for."""

    def __init__(self, dsns: list[str], store: AsyncShardedStore, transport: AsyncShardedTransport) -> None:
        self.dsns, self.store, self.transport = dsns, store, transport
        self.notes = Notes()
        self._open = AsyncExitStack()

    async def relay(self, place: int = 0) -> AsyncRelayAcross:
        return await self._open.enter_async_context(
            AsyncRelayAcross(self.dsns[place], place, self.store, self.transport, observer=self.notes)
        )

    async def emit(self, *ids: str, **effects: Any) -> None:
        """An execution of the first database emits to each of the two."""
        found = await self.store.load(HERE) or Execution(id=HERE, definition_id="d")
        emits = [Emit(target, Event(id=each, kind="k")) for each in ids for target in (HERE, THERE)]
        await self.store.commit(found, emits=emits, **effects)

    def delivered(self, target: str) -> list[str]:
        """Ids of the events that its group has, in order."""
        with psycopg.connect(self.dsns[shard_of(target, 2)]) as connection:
            query = "SELECT event::json ->> 'id' FROM transport_messages WHERE group_id = %s ORDER BY seq"
            return [each for (each,) in connection.execute(query, (target,))]

    async def close(self) -> None:
        await self._open.aclose()


@asynccontextmanager
async def opened(dsns: list[str]) -> AsyncIterator[Bench]:
    async with (
        await AsyncShardedStore.from_dsns(dsns, pool_size=4) as store,
        await AsyncShardedTransport.from_dsns(dsns, pool_size=4) as transport,
    ):
        bench = Bench(dsns, store, transport)
        try:
            yield bench
        finally:
            await bench.close()


def on(dsns: list[str], act: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        async with opened(dsns) as bench:
            await asyncio.wait_for(act(bench), DEADLINE_S)

    asyncio.run(run())


def test_relays_that_run_at_once_deliver_each_row_and_start_each_child_once(dsns: list[str]) -> None:
    children = [f"child{n}" for n in range(20)]

    async def act(bench: Bench) -> None:
        for number in range(20):
            await bench.emit(f"m{number:02}", spawns=[Spawn(children[number], "r", {})])
        relays = [await bench.relay() for _ in range(4)]
        while await bench.store.pending_outbox() or await bench.store.pending_spawns():
            await asyncio.gather(*(relay.tick() for relay in relays))
        for target in (HERE, THERE):
            assert bench.delivered(target) == [f"m{number:02}" for number in range(20)]
        for child in children:
            assert bench.delivered(child) == [f"start:{child}"]

    on(dsns, act)


def test_who_dies_in_his_turn_leaves_it_to_the_others(dsns: list[str]) -> None:
    async def act(bench: Bench) -> None:
        await bench.emit("m")
        relay = await bench.relay()
        mortal = psycopg.connect(dsns[0], autocommit=True)
        mortal.execute("BEGIN")
        assert perform(mortal, Handover().turn())
        assert await relay.tick() == 0
        assert await (await bench.relay(1)).tick() == 0  # nothing to do, and a turn of its own
        assert len(await bench.store.pending_outbox()) == 2
        mortal.close()
        while not await relay.tick():
            await asyncio.sleep(0.005)
        assert [bench.delivered(target) for target in (HERE, THERE)] == [["m"], ["m"]]

    on(dsns, act)


def test_who_is_frozen_in_his_turn_loses_it_and_goes_on_without_an_error(
    dsns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.relay.handover.PATIENCE_MS", 50)

    async def act(bench: Bench) -> None:
        await bench.emit("m")
        relay, notes = await bench.relay(), Notes()
        frozen = Sessions(dsns[0], notes, size=1, name="frozen")
        async with frozen:
            async with frozen.within("relay.turn", Handover().turn(), "turn_lost") as mine:
                assert mine
                while not await relay.tick():
                    await asyncio.sleep(0.005)
            assert notes.counts == {"turn_lost": 1}
            async with frozen.within("relay.turn", Handover().turn(), "turn_lost") as mine:
                assert mine
        assert bench.delivered(THERE) == ["m"]

    on(dsns, act)


def test_a_turn_ends_with_its_batch_whatever_becomes_of_it(dsns: list[str]) -> None:
    async def act(bench: Bench) -> None:
        await bench.emit("m")
        one, other = await bench.relay(), await bench.relay()

        async def refuse(*_: object) -> None:
            raise ZeroDivisionError

        sound, bench.transport.publish_many = bench.transport.publish_many, refuse  # type: ignore[method-assign,assignment]
        with pytest.raises(ZeroDivisionError):
            await one.tick()
        bench.transport.publish_many = sound  # type: ignore[method-assign]
        assert await other.tick() == 2
        assert await one.tick() == 0

    on(dsns, act)


def test_a_loop_goes_on_where_it_is_not_known_whether_a_child_was_saved(
    dsns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(bench: Bench) -> None:
        await bench.emit("m", spawns=[Spawn("child", "r", {})])
        save, stop = bench.store.save, asyncio.Event()

        async def lost(execution: Execution) -> None:
            await save(execution)
            monkeypatch.setattr(bench.store, "save", save)
            raise CommitOutcomeUnknown(execution.id)

        monkeypatch.setattr(bench.store, "save", lost)
        running = asyncio.create_task((await bench.relay()).run(stop))
        while not bench.delivered("child"):
            await asyncio.wait((running,), timeout=0.02)
            assert not running.done(), running.exception()
        stop.set()
        await running
        assert bench.notes.counts == {"tick_failed": 1}

    on(dsns, act)
