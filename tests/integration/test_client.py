"""Both clients do what they say, on a real server, whatever comes and goes meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import engine.client as client_module
from engine.client import (
    AsyncClient,
    Client,
    InsertInterrupted,
    NoSuchInstance,
    Result,
    ResultTimeout,
)
from engine.machine import Await, Done, Machine, Outcome, Step, Stop
from engine.picker import Commit, Job
from engine.pokes import channel, decode
from engine.sessions import OutcomeUnknown, Unavailable
from engine.statements import Catalogue
from engine.values import UnstorableValue
from stress.scripts.node import Notes
from tests.fixtures.node import Jobs, running_node


class Sum(Machine):
    name = "sum"

    async def add(self, step: Step) -> Outcome:
        return Done(step.state["a"] + step.state["b"])

    async def fail(self, step: Step) -> Outcome:
        return Stop("no")


def job(step: str = "add", **fields: Any) -> Job:
    return Job(**{"fsm": "sum", "step": step, "state": {"a": 1, "b": 2}, **fields})


def end(jobs: Jobs, row_id: int, **outcome: Any) -> None:
    """Give an instance its outcome, as a node would."""
    rows = jobs.do(
        jobs.picker.claim(queue="default", batch=1_000, claim=f"c{row_id}", lease_ms=60_000.0)
    ).rows
    assert row_id in [row.id for row in rows]
    jobs.do(jobs.picker.flush([Commit(id=row_id, claim=f"c{row_id}", **outcome)]))


def many(jobs: Jobs, count: int, **fields: Any) -> list[int]:
    ids = jobs.do(jobs.picker.insert_many([job(**fields) for _ in range(count)]))
    return [row_id for row_id in ids if row_id is not None]


def walk(client: Client, **wanted: Any) -> list[int]:
    """The ids of all pages."""
    page = client.list(**wanted)
    found = [instance.id for instance in page.instances]
    while page.cursor is not None:
        page = client.list(**wanted, cursor=page.cursor)
        found += [instance.id for instance in page.instances]
    return found


def test_a_client_puts_work_in_and_gets_its_results(jobs: Jobs) -> None:
    def talk() -> tuple[Result, Result]:
        with Client(jobs.dsn) as client:
            good, bad = client.insert_many([job(), job("fail")])
            assert good is not None
            assert bad is not None
            return client.result(good, timeout_s=20), client.result(bad, timeout_s=20)

    async def main() -> tuple[Result, Result]:
        async with running_node(jobs.dsn, [Sum]):
            return await asyncio.to_thread(talk)

    assert asyncio.run(main()) == (Result("done", 3, None), Result("failed", None, "no"))


def test_an_asynchronous_client_answers_alike(jobs: Jobs) -> None:
    async def main() -> None:
        async with running_node(jobs.dsn, [Sum]), AsyncClient(jobs.dsn) as client:
            good, bad = await client.insert(job()), await client.insert(job("fail"))
            assert good is not None
            assert bad is not None
            results = (await client.result(good, 20), await client.result(bad, 20))
            assert results == (Result("done", 3, None), Result("failed", None, "no"))
            assert (await client.inspect(good)).status == "done"
            page = await client.list(status="failed")
            assert [instance.id for instance in page.instances] == [bad]
            assert (await client.counts()).by == {("default", "done"): 1, ("default", "failed"): 1}
            with pytest.raises(NoSuchInstance):
                await client.inspect(10**9)
            assert await client.insert_many([]) == []

    asyncio.run(main())


def test_an_occupied_identity_answers_with_none(jobs: Jobs) -> None:
    with Client(jobs.dsn) as client:
        first = client.insert(job(correlation_key="k"))
        assert first is not None
        assert client.insert(job(correlation_key="k")) is None
        ids = client.insert_many([job(correlation_key="k"), job(correlation_key="j")])
        assert [row_id is None for row_id in ids] == [True, False]


def test_many_jobs_go_in_chunks(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CHUNK", 3)
    notes = Notes()
    with Client(jobs.dsn, observer=notes) as client:
        ids = client.insert_many(job(priority=number) for number in range(8))
    assert jobs.rows("SELECT id FROM gen_durable ORDER BY priority") == [(row_id,) for row_id in ids]
    assert [len(value["jobs"]) for value in notes.sent("insert_many")] == [3, 3, 2]


def test_a_chunk_that_fails_leaves_those_before_it_and_says_so(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CHUNK", 2)
    jobs.connection.execute("ALTER TABLE gen_durable ADD CHECK (priority <> 3)")
    with Client(jobs.dsn) as client:
        with pytest.raises(InsertInterrupted) as caught:
            client.insert_many([job(priority=number) for number in range(6)])
        assert isinstance(caught.value.__cause__, psycopg.errors.CheckViolation)
        assert [(row_id,) for row_id in caught.value.ids] == jobs.rows(
            "SELECT id FROM gen_durable ORDER BY id"
        )
        with pytest.raises(psycopg.errors.CheckViolation):
            client.insert_many([job(priority=3)])


def test_a_wait_that_is_too_short_says_how_far_the_instance_is(jobs: Jobs) -> None:
    with Client(jobs.dsn) as client:
        row_id = client.insert(job())
        assert row_id is not None
        for timeout_s in (0, 0.05):
            with pytest.raises(TimeoutError, match="it is runnable") as caught:
                client.result(row_id, timeout_s)
            assert isinstance(caught.value, ResultTimeout)
            assert caught.value.status == "runnable"


def test_a_wait_ends_soon_after_the_instance(jobs: Jobs) -> None:
    [row_id] = many(jobs, 1)
    notes = Notes()
    with Client(jobs.dsn, observer=notes) as client:
        found: list[Result] = []
        waiting = threading.Thread(target=lambda: found.append(client.result(row_id, 20)))
        waiting.start()
        while not notes.sent("outcome"):
            pass
        end(jobs, row_id, kind="done", result="null")
        waiting.join(20)
    assert found == [Result("done", None, None)]


def test_a_long_wait_asks_ever_more_rarely(jobs: Jobs) -> None:
    [row_id] = many(jobs, 1)
    notes = Notes()
    with Client(jobs.dsn, observer=notes) as client, pytest.raises(ResultTimeout):
        client.result(row_id, 1.0)
    assert 5 <= len(notes.sent("outcome")) <= 15


@pytest.mark.parametrize("row_id", [1, -1, 2**63, 10**30])
def test_an_instance_that_is_not_there_is_an_error(jobs: Jobs, row_id: int) -> None:
    with Client(jobs.dsn) as client:
        with pytest.raises(NoSuchInstance):
            client.result(row_id, 20)
        with pytest.raises(NoSuchInstance):
            client.inspect(row_id)


class Waiting(Machine):
    name = "waiting"

    async def wait(self, step: Step) -> Outcome:
        if not step.signals:
            return Await(("go",))
        return Done([signal.payload for signal in step.signals])


def test_a_signal_goes_to_an_instance_by_id_or_by_its_key_and_once_a_dedup_key(jobs: Jobs) -> None:
    notes = Notes()

    def talk() -> Result:
        with Client(jobs.dsn, observer=notes, poke_instance="test") as client:
            row_id = client.insert(Job(fsm="waiting", step="wait", correlation_key="k"))
            assert row_id is not None
            while client.inspect(row_id).status != "awaiting_signal":
                pass
            assert client.signal(row_id, "noise").outcome == "delivered"
            assert client.signal(10**9, "go").outcome == "no_target"
            first = client.signal("k", "go", {"n": 1}, dedup_key="d")
            assert (first.outcome, first.target) == ("delivered", row_id)
            # By now the first may be in the inbox, or consumed and the instance done.
            assert client.signal("k", "go", {"n": 2}, dedup_key="d").outcome in ("duplicate", "no_target")
            return client.result(row_id, timeout_s=20)

    async def main() -> Result:
        async with running_node(jobs.dsn, [Waiting], pokes=True):
            return await asyncio.to_thread(talk)

    result = asyncio.run(main())
    assert result.status == "done"
    assert {"n": 1} in result.value
    assert {"n": 2} not in result.value
    assert {"target": None, "key": "k", "name": "go", "dedup": "d"} in notes.sent("signal")
    assert 1 <= len(notes.sent("notify")) <= 2  # for the insert, and for the wake unless that came at once


def test_an_asynchronous_client_signals_alike(jobs: Jobs) -> None:
    async def main() -> None:
        async with running_node(jobs.dsn, [Waiting]), AsyncClient(jobs.dsn) as client:
            row_id = await client.insert(Job(fsm="waiting", step="wait"))
            assert row_id is not None
            assert (await client.signal(row_id, "go", 7)).outcome == "delivered"
            assert (await client.result(row_id, 20)).value == [7]
            assert (await client.signal(row_id, "go")).outcome == "no_target"

    asyncio.run(main())


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
def test_an_instance_is_shown_whole_whatever_the_zone_of_the_session(jobs: Jobs, zone: str) -> None:
    database = jobs.one("SELECT current_database()")
    jobs.connection.execute(f"ALTER DATABASE {database} SET timezone TO '{zone}'".encode())
    eligible_at = datetime.min.replace(tzinfo=UTC)
    with Client(jobs.dsn) as client:
        row_id = client.insert(
            job(
                state={"x": ["é", 1.5]}, eligible_at=eligible_at, correlation_key="k", priority=-3, weight=2.5
            )
        )
        assert row_id is not None
        jobs.rows("UPDATE gen_durable SET awaits = '{a,b}', result = '[1]' RETURNING id")
        found = client.inspect(row_id)
    assert abs(found.inserted_at - datetime.now(UTC)) < timedelta(minutes=5)
    expected = (row_id, {"x": ["é", 1.5]}, "runnable", eligible_at, "k", -3, 2.5, ("a", "b"), [1], None)
    assert (
        found.id,
        found.state,
        found.status,
        found.eligible_at,
        found.correlation_key,
        found.priority,
        found.weight,
        found.awaits,
        found.result,
        found.parent_id,
    ) == expected


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_show_each_instance_once_while_others_come_and_go(
    jobs: Jobs, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "SCAN", 5)
    staying, going = many(jobs, 40), many(jobs, 40)
    order = sorted(staying + going)
    with Client(jobs.dsn) as client:
        page = client.list(limit=limit)
        found = [instance.id for instance in page.instances]
        while page.cursor is not None:
            many(jobs, 1 if len(found) < 60 else 0)
            if going:
                jobs.rows("DELETE FROM gen_durable WHERE id = %s RETURNING id", going.pop())
            page = client.list(limit=limit, cursor=page.cursor)
            found += [instance.id for instance in page.instances]
    assert found == sorted(set(found))
    assert set(staying) <= set(found)
    assert order[0] in found


def test_pages_of_a_status_and_a_queue_hold_nothing_else(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SCAN", 10)
    wanted = []
    for number in range(60):
        [row_id] = many(jobs, 1, queue="b" if number % 3 else "a")
        if number % 2:
            jobs.rows("UPDATE gen_durable SET status = 'done' WHERE id = %s RETURNING id", row_id)
        if number % 2 and number % 3 == 0:
            wanted.append(row_id)
    with Client(jobs.dsn) as client:
        assert walk(client, status="done", queue="a", limit=4) == wanted
        assert walk(client, status="failed") == []
        assert len(walk(client, queue="b", limit=40)) == 40
        assert client.list(limit=60).cursor is not None
        assert client.list(limit=61).cursor is None


@pytest.mark.parametrize(
    "wanted",
    [
        {"status": "gone"},
        {"limit": 0},
        {"limit": 10**6},
        {"cursor": "x"},
        {"cursor": "é"},
        {"cursor": "MTotMQ"},
        {"queue": "\x00"},
    ],
)
def test_what_no_list_can_mean_is_refused(jobs: Jobs, wanted: dict[str, Any]) -> None:
    with Client(jobs.dsn) as client, pytest.raises(UnstorableValue):
        client.list(**wanted)


def test_counts_are_exact_up_to_their_bound_and_say_when_they_are_not(jobs: Jobs) -> None:
    many(jobs, 3, queue="a")
    [row_id] = many(jobs, 1, queue="b")
    jobs.rows("UPDATE gen_durable SET status = 'failed' WHERE id = %s RETURNING id", row_id)
    with Client(jobs.dsn) as client:
        counts = client.counts(at_most=4)
        assert counts.complete
        assert counts.by == {("a", "runnable"): 3, ("b", "failed"): 1}
        assert (counts.of(), counts.of(queue="a"), counts.of(status="failed"), counts.of(queue="c")) == (
            4,
            3,
            1,
            0,
        )
        assert not client.counts(at_most=3).complete


def test_a_client_connects_again_after_it_lost_its_session(jobs: Jobs) -> None:
    with Client(jobs.dsn, name="lost") as client:
        assert client.insert(job()) is not None
        jobs.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lost'")
        with pytest.raises(OutcomeUnknown):
            client.insert(job())
        assert client.insert(job()) is not None


def test_a_client_without_a_server_says_that_nothing_was_sent() -> None:
    with Client("host=/nonexistent dbname=x") as client, pytest.raises(Unavailable):
        client.insert(job())


def test_a_thousand_inserts_poke_a_few_times(jobs: Jobs) -> None:
    with (
        psycopg.connect(jobs.dsn, autocommit=True) as listener,
        Client(jobs.dsn, poke_instance="i") as client,
    ):
        listener.execute(f"LISTEN {channel('i')}".encode())
        began = datetime.now(UTC)
        for _ in range(1_000):
            client.insert(job(queue="é"))
        elapsed_ms = (datetime.now(UTC) - began).total_seconds() * 1_000
        heard = [decode(found.payload) for found in listener.notifies(timeout=0.2)]
    assert set(heard) == {"é"}
    assert len(heard) <= elapsed_ms / client_module.POKE_DEBOUNCE_MS + 1


def test_a_poke_that_fails_is_no_error_of_the_insert(jobs: Jobs) -> None:
    database = jobs.one("SELECT current_database()")
    jobs.connection.execute("CREATE SCHEMA shadow")
    jobs.connection.execute(
        "CREATE FUNCTION shadow.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$"
    )
    jobs.connection.execute(
        f"ALTER DATABASE {database} SET search_path TO shadow, pg_catalog, public".encode()
    )
    notes = Notes()
    with Client(jobs.dsn, poke_instance="i", observer=notes) as client:
        assert client.insert(job()) is not None
    assert notes.counts["poke_failed"] == 1


# ------------------------------------------------------------------------------------------------------- plans

ASKED: dict[str, tuple[list[object], int]] = {
    "client/outcome": ([7], 1),
    "client/inspect": ([list(range(1, 101))], 100),
    "client/page": ([5_000, 100, 100, "done", None], 100),
    "client/counts": ([100], 100),
}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", ASKED)
def test_a_question_touches_a_bounded_number_of_rows(jobs: Jobs, name: str, mode: str) -> None:
    jobs.connection.execute(
        "INSERT INTO gen_durable (fsm, step, status) SELECT 'm', 's',"
        " CASE WHEN mod(n, 2) = 0 THEN 'done' ELSE 'runnable' END::durable_status"
        " FROM generate_series(1, 20000) AS n"
    )
    jobs.connection.execute("ANALYZE gen_durable")
    arguments, most = ASKED[name]
    statement = Catalogue.load()[name]
    jobs.connection.execute("SELECT set_config('plan_cache_mode', %s, false)", [mode])
    jobs.connection.execute(f"PREPARE question ({', '.join(statement.types)}) AS {statement.text}".encode())
    values = ", ".join("NULL" if text is None else f"'{text}'" for text in statement.encode(tuple(arguments)))
    plan = jobs.one(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE question ({values})")
    nodes = nodes_of((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"])

    scans = [node for node in nodes if node.get("Relation Name") == "gen_durable"]
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Bitmap Heap Scan"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= most


def nodes_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes_of(child))]
