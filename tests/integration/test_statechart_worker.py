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
from engine.store import AsyncPostgresStore, Commit, Event, operations
from engine.store.shards import shard_of
from engine.transport import AsyncPostgresTransport
from stress.scenarios.charts import CHARTS, HUB, PARCEL
from stress.scripts.node import Notes

DEADLINE_S = 90.0
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
            assert await worker.tick() == 0  # for a while
            while await worker.tick() == 0:
                await asyncio.sleep(0.02)
            assert await bench.transport.depth() == 0

    on(database, act)


async def _begin(bench: Bench, worker: Worker, chart: Chart, *ids: str) -> None:
    """Executions that have begun, each with a message that is to be handled."""
    for each in ids:
        await bench.store.save(began(chart, each, {"expected": 9}))
        await bench.transport.publish(each, start_event(each))
    await worker.tick()
    for each in ids:
        await bench.transport.publish(each, Event(id="a", kind="arrived", payload={"parcel": "p"}))


@pytest.mark.parametrize(
    ("group_id", "event_id"), [("hub", "i" * 1_001), ("hub", "\0"), ("hub", ""), ("g" * 1_500, "e")]
)
def test_a_message_that_no_store_can_mark_ends_no_worker(database: str, group_id: str, event_id: str) -> None:
    async def act(bench: Bench) -> None:
        worker = bench.worker(HUB)
        await bench.store.save(began(HUB, "hub", {"expected": 1}))
        await bench.transport.publish(group_id, Event(id=event_id, kind="start"))
        await bench.transport.publish("hub", start_event("hub"))
        while await bench.transport.depth():
            await worker.tick()
        execution = await bench.store.load("hub")
        assert execution is not None
        assert execution.status == "RUNNING"

    on(database, act)


@pytest.mark.parametrize(
    "elsewhere",
    [
        """data = replace(data, '"active_path":"hub/', '"active_path":"hub/of_next_version/')""",
        """data = replace(data, '"root_path":"hub"', '"root_path":""')""",
        """data = replace(data, '"root_path":"hub"', '"root_path":"other"')""",
        """data = replace(data, '"invoke_seq":0', '"invoke_seq":"of the next version"')""",
    ],
)
def test_an_execution_of_another_version_is_left_to_others_and_holds_up_none(
    database: str, elsewhere: str
) -> None:
    async def act(bench: Bench) -> None:
        worker = bench.worker(HUB)
        await _begin(bench, worker, HUB, "one", "two")
        [(changed,)] = rows(
            database,
            f"WITH u AS (UPDATE executions SET {elsewhere} WHERE id = 'one' RETURNING data) "
            "SELECT count(*) FROM u JOIN executions AS e ON e.id = 'one' AND e.data <> u.data",
        )
        assert changed == 1
        assert await worker.tick() == 2
        assert await worker.tick() == 0  # for a while
        two = await bench.store.load("two")
        assert two is not None
        assert two.context["parcels"] == ["p"]
        assert await bench.transport.depth() == await bench.transport.depth("one") == 1

    on(database, act)


_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE 'not this one' USING ERRCODE = 'P0001'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON executions FOR EACH ROW WHEN (OLD.id LIKE 'bad%') EXECUTE FUNCTION refuse()
"""


def test_what_the_database_refuses_of_a_batch_harms_no_other(database: str) -> None:
    async def act(bench: Bench) -> None:
        notes = Notes()
        worker = bench.worker(HUB, observer=notes)
        await _begin(bench, worker, HUB, "a", "bad", "c")
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(_REFUSE)
        assert await worker.tick() == 3
        for good in ("a", "c"):
            execution = await bench.store.load(good)
            assert execution is not None
            assert execution.context["parcels"] == ["p"]
        assert await bench.transport.depth() == await bench.transport.depth("bad") == 1
        assert notes.counts["refused"] == notes.counts["given_back"] == 1
        assert await worker.tick() == 0  # for a while

    on(database, act)


def test_what_one_database_refuses_is_not_told_of_the_others(server: Server) -> None:
    async def run(dsns: list[str]) -> None:
        notes = Notes()
        async with Stack(dsns, [HUB]) as stack:
            worker = Worker((HUB,), stack.store, stack.transport, observer=notes)
            ids = [next(f"{kind}{n}" for n in range(99) if shard_of(f"{kind}{n}", 2) == shard)
                   for kind, shard in (("good", 0), ("bad", 1))]  # fmt: skip
            bench: Any = stack
            await _begin(bench, worker, HUB, *ids)
            with psycopg.connect(dsns[1], autocommit=True) as connection:
                connection.execute(_REFUSE)
            notes.completions.clear()
            assert await worker.tick() == 2
        ends = [kind for kind, name, _ in notes.completions if name == "store.commit"]
        assert sorted(ends) == ["fail", "fail", "ok"]

    with ExitStack() as databases:
        asyncio.run(run([databases.enter_context(fresh_database(server)) for _ in range(2)]))


def test_a_batch_that_is_too_big_to_be_sent_is_committed_one_by_one(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(bench: Bench) -> None:
        worker = bench.worker(HUB)
        await _begin(bench, worker, HUB, "a", "b", "c")
        monkeypatch.setattr(operations, "MAX_SENT_BYTES", 1_000)
        assert await worker.tick() == 3
        assert await bench.transport.depth() == 0
        for each in ("a", "b", "c"):
            execution = await bench.store.load(each)
            assert execution is not None
            assert execution.context["parcels"] == ["p"]

    on(database, act)


def test_where_a_part_of_a_stack_fails_all_of_it_ends(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Worker) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(Worker, "tick", broken)

    async def run() -> None:
        async with Stack([database], [HUB], polling=EAGER) as stack:
            before = asyncio.all_tasks()
            with pytest.raises(ZeroDivisionError):
                await stack.run(asyncio.Event())
            loops = [task for task in asyncio.all_tasks() - before if "run" in repr(task.get_coro())]
            assert loops == []

    asyncio.run(run())


def test_a_batch_costs_as_many_round_trips_whatever_its_size(database: str) -> None:
    async def act(bench: Bench) -> None:
        for number in range(20):
            await bench.store.commit_many([Commit(execution=began(HUB, f"hub-{number}", {"expected": 1}))])
            await bench.transport.publish(f"hub-{number}", start_event(f"hub-{number}"))
        assert await bench.worker(HUB).tick() == 20
        assert await bench.transport.depth() == 0

    on(database, act)
