"""Workers, relays and sweepers on one database bring every execution to its end, each effect once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import psycopg
import pytest

from engine.postgres import Server, fresh_database
from engine.relay import Polling
from engine.statechart import Chart, Go, Scope, State, began, start_event
from engine.statechart.stack import Stack
from engine.statechart.worker import Worker
from engine.store import AsyncPostgresStore, Commit, Event
from engine.transport import AsyncPostgresTransport
from stress.scenarios.charts import CHARTS, HUB, PARCEL
from tests.fixtures.node import Notes

DEADLINE_S = 30.0
EAGER = Polling(min_interval_ms=2.0, max_interval_ms=10.0)


class Bench:
    """A store and a transport on one database, and workers that tick when they are told to."""

    def __init__(self, store: AsyncPostgresStore, transport: AsyncPostgresTransport, dsn: str) -> None:
        self.store, self.transport, self.dsn = store, transport, dsn

    def worker(self, *charts: Chart, **options: Any) -> Worker:
        return Worker(charts, self.store, self.transport, polling=EAGER, **options)


async def _on(dsn: str, act: Callable[[Bench], Awaitable[None]]) -> None:
    async with (
        await AsyncPostgresStore.from_dsn(dsn) as store,
        await AsyncPostgresTransport.from_dsn(dsn) as transport,
    ):
        async with asyncio.timeout(DEADLINE_S):
            await act(Bench(store, transport, dsn))


def on(dsn: str, act: Callable[[Bench], Awaitable[None]]) -> None:
    asyncio.run(_on(dsn, act))


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


@pytest.mark.parametrize("databases", [1, 2])
def test_parcels_and_their_hub_come_to_their_ends_with_each_effect_once(
    server: Server, databases: int
) -> None:
    parcels = 12

    async def run(dsns: list[str]) -> None:
        stop = asyncio.Event()
        async with AsyncExitStack() as exits:
            stacks = [
                await exits.enter_async_context(Stack(dsns, CHARTS, batch=5, polling=EAGER)) for _ in range(3)
            ]
            running = [asyncio.create_task(stack.run(stop)) for stack in stacks]
            first = stacks[0]
            await first.start(began(HUB, "hub", {"expected": parcels}))
            for number in range(parcels):
                parcel = f"parcel-{number}"
                await first.start(began(PARCEL, parcel, {"hub": "hub"}))
                for word in ("rush", "collect", "lose")[: number % 4]:
                    for _ in range(2):  # the client does not know whether the first came through
                        await first.transport.publish(parcel, Event(id=f"{parcel}-{word}", kind=word))
            async with asyncio.timeout(DEADLINE_S):
                unfinished = "SELECT 1 FROM executions WHERE status IN ('PENDING', 'RUNNING') LIMIT 1"
                while any(rows(dsn, unfinished) for dsn in dsns):
                    await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*running)
            hub = await first.store.load("hub")
            assert hub is not None
            assert sorted(hub.context["parcels"]) == sorted(f"parcel-{n}" for n in range(parcels))

    with ExitStack() as exits:
        dsns = [exits.enter_context(fresh_database(server)) for _ in range(databases)]
        asyncio.run(run(dsns))
        for dsn in dsns:
            ended = rows(dsn, "SELECT DISTINCT status FROM executions WHERE parent_id IS NULL")
            assert ended == [("DONE",)]
            assert rows(dsn, "SELECT 1 FROM timers") == []
            # A version for each event that was processed, none twice, and the first for the save.
            assert rows(
                dsn,
                "SELECT e.id FROM executions AS e LEFT JOIN processed_events AS p ON p.execution_id = e.id "
                "GROUP BY e.id HAVING e.version <> 1 + count(p.event_id)",
            ) == []  # fmt: skip


def test_an_event_that_comes_twice_is_acknowledged_and_takes_effect_once(database: str) -> None:
    async def act(bench: Bench) -> None:
        await bench.store.save(began(HUB, "hub", {"expected": 3}))
        notes = Notes()
        worker = bench.worker(HUB, observer=notes)
        arrived = Event(id="a-1", kind="arrived", payload={"parcel": "p"})
        for event in (start_event("hub"), arrived, arrived):
            await bench.transport.publish("hub", event)
            assert await worker.tick() == 1
        execution = await bench.store.load("hub")
        assert execution is not None
        assert execution.context["parcels"] == ["p"]
        assert notes.counts["processed_before"] == 1
        assert await bench.transport.depth() == 0

    on(database, act)


def test_a_message_for_nobody_or_in_no_form_is_dropped_and_one_of_a_strange_chart_is_left(
    database: str,
) -> None:
    async def act(bench: Bench) -> None:
        await bench.store.save(began(PARCEL, "parcel", {}))
        notes = Notes()
        worker = bench.worker(HUB, observer=notes)
        await bench.transport.publish("nobody", start_event("nobody"))
        await bench.transport.publish("parcel", start_event("parcel"))
        await bench.transport.publish("unreadable", "no event")
        assert await worker.tick() == 3
        assert notes.counts["no_target"] == notes.counts["unreadable"] == 1
        assert notes.counts["unknown_chart"] == notes.counts["given_back"] == 1
        assert await bench.transport.depth() == await bench.transport.depth("parcel") == 1
        assert await worker.tick() == 0  # for a while

    on(database, act)


def _unstorable(scope: Scope) -> None:
    scope.context["bad"] = {"half": "\ud800"}


BAD = Chart("bad", State("bad", initial="a", states=(State("a", on={"go": Go(None, do=_unstorable)}),)))


def test_an_outcome_that_cannot_be_stored_fails_its_execution_and_harms_no_other(database: str) -> None:
    async def act(bench: Bench) -> None:
        worker = bench.worker(BAD, HUB)
        for execution in (began(BAD, "bad"), began(HUB, "hub", {"expected": 1})):
            await bench.store.save(execution)
            await bench.transport.publish(execution.id, start_event(execution.id))
        await worker.tick()
        await bench.transport.publish("bad", Event(id="go", kind="go"))
        await bench.transport.publish("hub", Event(id="a", kind="arrived", payload={"parcel": "p"}))
        assert await worker.tick() == 2
        bad, hub = await bench.store.load("bad"), await bench.store.load("hub")
        assert bad is not None
        assert hub is not None
        assert (bad.status, hub.status) == ("FAILED", "DONE")
        assert "cannot be stored" in (bad.error or "")
        assert await bench.transport.depth() == 0

    on(database, act)


class Meddling:
    """A store in which somebody else moves the execution on between the loading and the commit."""

    def __init__(self, store: AsyncPostgresStore, times: int) -> None:
        self.store, self.times = store, times
        self.load_for_event = store.load_for_event

    async def commit_many(self, commits: Any) -> Any:
        if self.times:
            self.times -= 1
            for commit in commits:
                rival = await self.store.load(commit.execution.id)
                assert rival is not None
                await self.store.save(rival)
        return await self.store.commit_many(commits)


@pytest.mark.parametrize(("times", "done"), [(1, True), (4, True), (5, False)])
def test_who_loses_a_race_steps_again_and_gives_the_message_back_when_that_never_ends(
    database: str, times: int, done: bool
) -> None:
    async def act(bench: Bench) -> None:
        await bench.store.save(began(HUB, "hub", {"expected": 1}))
        await bench.transport.publish("hub", start_event("hub"))
        notes = Notes()
        worker = Worker((HUB,), Meddling(bench.store, times), bench.transport, observer=notes)
        await worker.tick()
        execution = await bench.store.load("hub")
        assert execution is not None
        assert (execution.status == "RUNNING") is done
        assert notes.counts["conflict"] == times
        assert await bench.transport.depth() == (0 if done else 1)
        if not done:
            assert await worker.tick() == 1
            assert await bench.transport.depth() == 0

    on(database, act)


def test_a_batch_costs_as_many_round_trips_whatever_its_size(database: str) -> None:
    async def act(bench: Bench) -> None:
        for number in range(20):
            await bench.store.commit_many([Commit(execution=began(HUB, f"hub-{number}", {"expected": 1}))])
            await bench.transport.publish(f"hub-{number}", start_event(f"hub-{number}"))
        assert await bench.worker(HUB).tick() == 20
        assert await bench.transport.depth() == 0

    on(database, act)
