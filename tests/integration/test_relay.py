"""The relay and the timer sweeper of an all-Postgres stack: each hand-over happens once, in order, whoever dies."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from engine.operation import Operation
from engine.postgres import conninfo
from engine.relay import AsyncRelay, AsyncTimerSweeper, Polling, Relay, TimerSweeper, handover
from engine.store import Emit, Event, Execution, PostgresStore, Spawn, TimerOp
from engine.store.encoding import MAX_KEY_BYTES, key
from engine.values import MAX_JSON_DEPTH
from stress.scripts.courier import Courier
from stress.scripts.node import Notes
from stress.scripts.race import TIMEOUT_S
from stress.scripts.steps import Pause, watched


def event(event_id: str) -> Event:
    return Event(id=event_id, kind="k")


def test_what_a_commit_emits_is_published_in_its_order_and_gone_from_the_outbox(courier: Courier) -> None:
    with PostgresStore.from_dsn(courier.dsn) as store, Relay(courier.dsn) as relay:
        execution = Execution(id="emitter", definition_id="d")
        for number in range(3):
            store.commit(execution, emits=[Emit(target, event(f"{target}{number}")) for target in "xyx"])
        assert relay.deliver() == 9
        assert relay.deliver() == 0
    assert courier.outbox() == []
    assert courier.delivered("x") == ["x0", "x0", "x1", "x1", "x2", "x2"]
    assert courier.delivered("y") == ["y0", "y1", "y2"]


def test_what_is_handed_over_is_bounded_per_lane_and_goes_on_until_nothing_is_left(courier: Courier) -> None:
    courier.emit("x", *(f"e{n}" for n in range(25)))
    notes = Notes()
    with Relay(courier.dsn, batch=10, observer=notes) as relay:
        assert relay.deliver() == 25
    assert [len(value["seqs"]) for _, _, value in notes.completions] == [10, 10, 5, 0]
    assert courier.delivered() == [f"e{n}" for n in range(25)]


def test_a_lane_that_another_relay_holds_is_left_to_it_and_the_others_go_on(courier: Courier) -> None:
    lanes = courier.rows(
        "SELECT DISTINCT ON (2) 't' || n, hashtext('t' || n) & 15 FROM generate_series(1, 99) n"
    )
    (held, lane), (free, _) = lanes[:2]
    courier.emit(held, "e1", "e2")
    courier.emit(free, "e3")
    holder = courier.race.session("holder")
    with holder.transaction():
        holder.execute("SELECT pg_advisory_xact_lock(1735681639, %s)", (lane,))
        courier.move()
        assert courier.delivered() == ["e3"]
    courier.move()
    assert courier.delivered(held) == ["e1", "e2"]


def test_an_ack_of_rows_that_a_relay_is_handing_over_waits_and_finds_them_gone(courier: Courier) -> None:
    courier.emit("x", "e1", "e2")
    with courier.race.session("other").transaction():
        assert len(courier.move("other")) == 2
        late = courier.race.begin("late", courier.handover.ack([1, 2]))
    assert late.result(TIMEOUT_S) == []
    assert courier.delivered() == ["e1", "e2"]


def test_acks_of_the_same_rows_lock_them_in_their_order_whatever_the_plan(courier: Courier) -> None:
    # The later row lies first in the table, and is named first.
    courier.rows("INSERT INTO outbox (seq, target_id, event) VALUES (2, NULL, '{}'), (1, NULL, '{}')")
    # And a plan that takes them as they lie.
    settings = {"enable_indexscan": "off", "enable_seqscan": "on", "enable_bitmapscan": "off"}
    courier.race.session("ack", settings)
    with courier.race.session("holder").transaction():
        courier.race.session("holder").execute("SELECT FROM outbox WHERE seq = 1 FOR UPDATE")
        late = courier.race.begin("ack", courier.handover.ack([2, 1]))
        courier.rows("SELECT FROM outbox WHERE seq = 2 FOR UPDATE NOWAIT")
    assert sorted(late.result(TIMEOUT_S)) == [1, 2]


def test_what_is_too_much_for_one_statement_goes_one_by_one(courier: Courier) -> None:
    courier.rows(_TOO_MUCH)
    courier.rows(
        "CREATE TRIGGER too_much AFTER DELETE ON outbox REFERENCING OLD TABLE AS gone"
        " FOR EACH STATEMENT EXECUTE FUNCTION too_much()"
    )
    courier.emit("x", "e1", "e2", "e3")
    courier.emit("y", "e4")
    notes = Notes()
    with Relay(courier.dsn, observer=notes) as relay:
        assert relay.deliver() == 4
    assert courier.delivered("x") == ["e1", "e2", "e3"]
    assert courier.delivered("y") == ["e4"]
    assert notes.counts["batch_too_large"] >= 1


def test_children_that_are_too_much_together_are_made_page_by_page(
    courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "MAX_SENT_BYTES", 2_000)
    courier.parent()
    names = [f"c{n}" for n in range(7)]
    courier.fork(*names)
    notes = Notes()
    with Relay(courier.dsn, observer=notes) as relay:
        assert relay.spawn() == 7
    pages = [value["made"] for kind, _, value in notes.completions if kind == "ok" and value["made"]]
    assert [name for page in pages for name in sorted(page)] == names
    assert len(pages) > 1


_TOO_MUCH = """
CREATE FUNCTION too_much() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) FROM gone) > 1 THEN
        RAISE 'too much' USING ERRCODE = 'program_limit_exceeded';
    END IF;
    RETURN NULL;
END $$
"""


def test_events_for_nobody_are_dropped_and_counted_or_handed_on_in_order(courier: Courier) -> None:
    courier.emit(None, "e1", "e2")
    notes = Notes()
    with Relay(courier.dsn, observer=notes) as relay:
        assert relay.broadcast() == 2
    assert notes.counts == {"broadcast_dropped": 2}
    courier.emit(None, "e3", "e4")
    seen: list[str] = []

    async def hear(heard: Event) -> None:
        seen.append(heard.id)

    with Relay(courier.dsn, observer=notes, on_broadcast=hear) as relay:
        assert relay.tick() == 2
    assert seen == ["e3", "e4"]
    assert (courier.outbox(), courier.messages()) == ([], [])


def test_a_broadcast_that_its_handler_refuses_stays_with_those_behind_it(courier: Courier) -> None:
    courier.emit(None, "e1", "e2", "e3")
    seen: list[str] = []

    async def hear(heard: Event) -> None:
        if heard.id == "e2" and seen == ["e1"]:
            seen.append("refused")
            raise LookupError("not now")
        seen.append(heard.id)

    notes = Notes()
    with Relay(courier.dsn, on_broadcast=hear, observer=notes) as relay:
        assert relay.broadcast() == 1
        assert courier.outbox() == [(None, "e2"), (None, "e3")]
        assert relay.broadcast() == 2
    assert seen == ["e1", "refused", "e2", "e3"]
    assert notes.counts == {"broadcast": 3, "broadcast_failed": 1}


def test_a_spawn_becomes_a_child_that_the_store_can_load_and_its_start_event(courier: Courier) -> None:
    with PostgresStore.from_dsn(courier.dsn) as store, Relay(courier.dsn) as relay:
        parent = Execution(id="parent", definition_id="d", definition_fqn="a.b", priority=3)
        store.commit(parent, spawns=[Spawn(name, "left", {"nul": "\x00", "n": 1}) for name in ("c1", "c2")])
        assert relay.spawn() == 2
        child = store.load("c1")
    assert child == Execution(
        id="c1",
        definition_id="d",
        definition_fqn="a.b",
        root_path="left",
        context={"nul": "\x00", "n": 1},
        version=1,
        priority=3,
        parent_id="parent",
        child_id="c1",
    )
    assert courier.delivered() == ["start:c1", "start:c2"]
    assert courier.rows("SELECT DISTINCT priority FROM transport_groups") == [(3,)]
    assert courier.rows("SELECT 1 FROM spawns") == []


def test_a_child_that_is_there_stays_as_it_is_and_is_started_under_the_same_event(courier: Courier) -> None:
    courier.parent()
    courier.fork("child", "child")
    with Relay(courier.dsn) as relay:
        relay.spawn()
        courier.rows("UPDATE executions SET version = 7, status = 'RUNNING' WHERE id = 'child'")
        courier.fork("child")
        relay.spawn()
    assert courier.rows("SELECT version, status FROM executions WHERE id = 'child'") == [(7, "RUNNING")]
    assert set(courier.delivered()) == {"start:child"}


def test_a_spawn_that_can_never_be_done_is_counted_and_does_not_hold_up_the_others(courier: Courier) -> None:
    courier.fork(*(f"orphan{n}" for n in range(5)), parent_id="nobody")
    courier.parent()
    courier.rows(
        "INSERT INTO spawns (parent_id, child_id, root_path, context) VALUES ('parent', 'c0', 'r', 'no json')"
    )
    courier.rows(
        "INSERT INTO spawns (parent_id, child_id, root_path, context) VALUES ('parent', 'deep', 'r', %s)",
        '{"in":' * MAX_JSON_DEPTH + "{}" + "}" * MAX_JSON_DEPTH,
    )
    courier.fork("c1")
    notes = Notes()
    with Relay(courier.dsn, batch=2, observer=notes) as relay:
        assert relay.spawn() == 1
    assert notes.counts == {"spawn_refused": 7}
    assert courier.delivered() == ["start:c1"]


def test_what_is_emitted_to_a_child_waits_for_the_child(courier: Courier) -> None:
    courier.parent()
    courier.fork("child")
    courier.emit("child", "e1")
    courier.emit("other", "e2")
    courier.move()
    assert courier.delivered() == ["e2"]
    with Relay(courier.dsn) as relay:
        relay.tick()
    assert courier.delivered("child") == ["start:child", "e1"]


def test_a_relay_that_is_paused_with_spawns_in_its_hands_loses_them_to_the_others(
    courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "PATIENCE_MS", 50)
    courier.parent()
    courier.fork("child")
    pause = Pause("relay/make")
    paused = courier.race.start("paused", pause.of(courier.handover.spawn(0, 10)))
    pause.reached()
    pid = courier.race.session("paused").info.backend_pid
    courier.until("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid, wanted=0)
    with Relay(courier.dsn) as relay:
        assert relay.spawn() == 1
    pause.end()
    assert isinstance(paused.exception(TIMEOUT_S), psycopg.OperationalError)
    assert courier.delivered() == ["start:child"]


def test_a_due_timer_becomes_one_event_of_the_outbox(courier: Courier) -> None:
    with PostgresStore.from_dsn(courier.dsn) as store, TimerSweeper(courier.dsn) as sweeper:
        execution = Execution(id="x", definition_id="d")
        store.commit(
            execution,
            timers=[TimerOp("schedule", path, at) for path, at in (("b", 2.5), ("a", 1.0), ("c", 9.0))],
        )
        assert [(each.path, each.fire_at) for each in sweeper.sweep(now=5.0)] == [("a", 1.0), ("b", 2.5)]
        assert sweeper.sweep(now=5.0) == []
        [(_, target, first), (_, _, second)] = store.pending_outbox()
        assert store.due_timers(100.0) == [("x", "c", 9.0)]
    assert target == "x"
    assert (first.kind, first.payload) == ("timer", {"path": "a", "fire_at": 1.0})
    assert second.payload == {"path": "b", "fire_at": 2.5}


def test_the_event_of_the_longest_timer_has_an_id_that_can_be_marked(courier: Courier) -> None:
    courier.arm("p" * MAX_KEY_BYTES, 1.0, execution_id="x" * MAX_KEY_BYTES)
    courier.arm("q" * MAX_KEY_BYTES, 1.0, execution_id="x" * MAX_KEY_BYTES)
    with TimerSweeper(courier.dsn) as sweeper:
        assert len(sweeper.sweep(now=5.0)) == 2
    ids = {key("event.id", event_id) for _, event_id in courier.outbox()}
    assert len(ids) == 2


def test_a_timer_fires_for_the_very_instant_that_it_was_armed_for_whatever_the_servers_defaults(
    courier: Courier,
) -> None:
    name = conninfo.parse(courier.dsn)["dbname"]
    courier.rows(f'ALTER DATABASE "{name}" SET extra_float_digits = -3')
    instant = 1_700_000_000.123456
    courier.arm("p", instant)
    with TimerSweeper(courier.dsn) as sweeper, PostgresStore.from_dsn(courier.dsn) as store:
        assert [each.fire_at for each in sweeper.sweep(now=2e9)] == [instant]
        [(_, _, event)] = store.pending_outbox()
        assert event.payload["fire_at"] == instant


def test_the_servers_clock_says_what_is_due(courier: Courier) -> None:
    [(now,)] = courier.rows("SELECT extract(EPOCH FROM now())::double precision")
    courier.arm("past", now - 1.0)
    courier.arm("future", now + 1_000.0)
    with TimerSweeper(courier.dsn) as sweeper:
        assert [each.path for each in sweeper.sweep()] == ["past"]


def test_a_sweep_passes_over_a_timer_that_is_being_armed_anew_and_the_new_one_stays(courier: Courier) -> None:
    courier.arm("p", 5.0)
    with courier.race.session("worker").transaction():
        courier.arm("p", 50.0, session="worker")
        assert courier.do(courier.handover.sweep(10, 10.0)) == []
    assert courier.do(courier.handover.sweep(10, 10.0)) == []
    assert courier.rows("SELECT fire_at FROM timers") == [(50.0,)]


def test_a_sweep_passes_over_a_timer_that_is_being_cancelled(courier: Courier) -> None:
    courier.arm("p", 5.0)
    with courier.race.session("worker").transaction():
        courier.race.session("worker").execute("DELETE FROM timers")
        assert courier.do(courier.handover.sweep(10, 10.0)) == []
    assert (courier.do(courier.handover.sweep(10, 10.0)), courier.outbox()) == ([], [])


def test_a_timer_armed_anew_while_it_fires_waits_for_the_sweep_and_stays(courier: Courier) -> None:
    courier.arm("p", 5.0)
    with courier.gate("sweeper", "outbox INSERT"):
        sweep = courier.race.begin("sweeper", courier.handover.sweep(10, 10.0))
        courier.race.session("worker")
        armed = courier.race.call(courier.arm, "p", 5.0, "x", "worker")
        courier.race.until_blocked("worker")
    assert len(sweep.result(TIMEOUT_S)) == 1
    armed.result(TIMEOUT_S)
    assert courier.rows("SELECT fire_at FROM timers") == [(5.0,)]


# What a relay and a sweeper have before them in the tests below, and every place where they change a row.
GATES = [
    "outbox DELETE", "transport_groups INSERT", "transport_messages INSERT", "executions INSERT", "spawns DELETE",
    "timers DELETE", "outbox INSERT",
]  # fmt: skip


def prepare(courier: Courier) -> None:
    courier.emit("x", "e1", "e2")
    courier.emit("y", "e3")
    courier.parent()
    courier.fork("c1", "c2")
    courier.arm("p", 5.0)
    courier.arm("q", 6.0)


def inventory(courier: Courier) -> dict[str, Counter[str]]:
    """Every piece of work, by where it is. A timer that fired and its event are one piece."""
    ids = [each.split(":")[0] if each.startswith("timer") else each for each in courier.delivered()]
    outbox = [each.split(":")[0] if each.startswith("timer") else each for _, each in courier.outbox()]
    return {
        "timers": Counter("timer" for _ in courier.rows("SELECT 1 FROM timers")),
        "spawns": Counter(f"start:{child}" for [child] in courier.rows("SELECT child_id FROM spawns")),
        "outbox": Counter(outbox),
        "transport": Counter(ids),
    }


ALL = Counter({"e1": 1, "e2": 1, "e3": 1, "start:c1": 1, "start:c2": 1, "timer": 2})


def check_whole(courier: Courier) -> None:
    """Every piece of work is in one place, and a child is there exactly when its spawn is not."""
    assert sum(inventory(courier).values(), Counter[str]()) == ALL
    children = {child for [child] in courier.rows("SELECT id FROM executions WHERE parent_id = 'parent'")}
    spawns = {child for [child] in courier.rows("SELECT child_id FROM spawns")}
    assert (children | spawns, children & spawns) == ({"c1", "c2"}, set())


def finish(courier: Courier) -> None:
    """Another relay and another sweeper do what is left, and do it once."""
    with Relay(courier.dsn) as relay, TimerSweeper(courier.dsn) as sweeper:
        sweeper.sweep()
        relay.tick()
    check_whole(courier)
    assert inventory(courier)["transport"] == ALL
    assert courier.delivered("x")[:2] == ["e1", "e2"]


def work(courier: Courier) -> list[Operation[Any]]:
    return [courier.handover.sweep(10, None), courier.handover.spawn(0, 10), courier.handover.move(16, 10, 0)]


@pytest.mark.parametrize("at", GATES)
def test_a_backend_that_dies_at_any_change_has_handed_over_all_or_nothing(courier: Courier, at: str) -> None:
    prepare(courier)
    with courier.gate("mortal", at):
        for operation in work(courier):
            pending = courier.race.start("mortal", operation)
            while not pending.done() and not courier.rows(
                "SELECT 1 WHERE cardinality(pg_blocking_pids(%s)) > 0",
                courier.race.session("mortal").info.backend_pid,
            ):
                pass
            if not pending.done():
                break
        else:
            raise AssertionError(f"nobody came to {at}")
        before = inventory(courier)
        courier.terminate("mortal")
        assert isinstance(pending.exception(TIMEOUT_S), psycopg.OperationalError)
    assert inventory(courier) == before
    check_whole(courier)
    finish(courier)


@pytest.mark.parametrize("request_number", range(5))
def test_a_backend_that_dies_between_any_two_statements_has_made_no_child_or_all(
    courier: Courier, request_number: int
) -> None:
    prepare(courier)
    sent = 0

    def before(_: list[str]) -> None:
        nonlocal sent
        if sent == request_number:
            courier.terminate("mortal")
        sent += 1

    for operation in work(courier):
        try:
            courier.do(watched(operation, before), "mortal")
        except psycopg.OperationalError:
            break
    else:
        raise AssertionError("there are fewer requests")
    check_whole(courier)
    finish(courier)


@pytest.mark.slow(3)
@pytest.mark.parametrize("at", GATES)
def test_a_process_that_is_killed_at_any_change_has_handed_over_all_or_nothing(
    courier: Courier, at: str
) -> None:
    prepare(courier)
    waiting = (
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name IN ('pgreferee relay', 'pgreferee timers') AND wait_event = 'advisory'"
    )
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name IN ('pgreferee relay', 'pgreferee timers')"
    )
    with courier.closed_gate():
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.relay_process", courier.gated(at)]
        )
        try:
            courier.until(waiting, wanted=True)
        finally:
            process.kill()
            process.wait(TIMEOUT_S)
    # What the server had begun it ends, one way or the other.
    courier.until(sessions, wanted=0)
    check_whole(courier)
    finish(courier)


def test_four_relays_and_sweepers_at_once_hand_everything_over_once_and_in_order(courier: Courier) -> None:
    emitters, commits = 6, 25
    courier.parent()

    def commit(number: int) -> None:
        with PostgresStore.from_dsn(courier.dsn) as store:
            execution = Execution(id=f"emitter{number}", definition_id="d")
            for n in range(commits):
                targets = ("x", f"y{number}", f"child{number}-{n}")
                store.commit(
                    execution,
                    emits=[Emit(target, event(f"{number}:{target}:{n:03}")) for target in targets],
                    spawns=[Spawn(f"child{number}-{n}", "r", {})],
                    timers=[TimerOp("schedule", f"t{n}", 1.0)],
                )

    async def relay_until(stopped: threading.Event) -> None:
        stop = asyncio.Event()
        polling = Polling(min_interval_ms=1.0, max_interval_ms=5.0)
        async with (
            AsyncRelay(courier.dsn, batch=7, lanes=3, polling=polling) as relay,
            AsyncTimerSweeper(courier.dsn, batch=5, polling=polling) as sweeper,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(relay.run(stop))
            group.create_task(sweeper.run(stop))
            await asyncio.to_thread(stopped.wait, 60)
            stop.set()

    stopped = threading.Event()
    with ThreadPoolExecutor(emitters + 4) as threads:
        relays = [threads.submit(asyncio.run, relay_until(stopped)) for _ in range(4)]
        try:
            for committer in [threads.submit(commit, number) for number in range(emitters)]:
                committer.result(60)
            for table in ("timers", "spawns", "outbox"):
                courier.until(f"SELECT count(*) FROM {table}", wanted=0)
        finally:
            stopped.set()
        for each in relays:
            each.result(60)
    ids = courier.delivered()
    assert len(ids) == len(set(ids)) == emitters * commits * 5
    for number in range(emitters):
        for target in ("x", f"y{number}"):
            mine = [each for each in courier.delivered(target) if each.startswith(f"{number}:")]
            assert mine == [f"{number}:{target}:{n:03}" for n in range(commits)]
        assert courier.delivered(f"child{number}-7") == [
            f"start:child{number}-7",
            f"{number}:child{number}-7:007",
        ]
    assert courier.rows("SELECT count(*) FROM executions WHERE parent_id IS NOT NULL") == [
        (emitters * commits,)
    ]


def test_a_loop_survives_a_server_that_ends_its_session_and_stops_when_it_is_told(courier: Courier) -> None:
    notes = Notes()

    async def run() -> None:
        stop = asyncio.Event()
        polling = Polling(min_interval_ms=1.0, max_interval_ms=5.0)
        async with AsyncRelay(courier.dsn, polling=polling, observer=notes) as relay:
            task = asyncio.create_task(relay.run(stop))
            async with asyncio.timeout(TIMEOUT_S):
                while not notes.completions:
                    await asyncio.sleep(0.001)
                courier.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgreferee relay'"
                )
                while "tick_failed" not in notes.counts:
                    await asyncio.sleep(0.001)
                courier.emit("x", "e1")
                while courier.delivered() != ["e1"]:
                    await asyncio.sleep(0.001)
                stop.set()
                await task

    asyncio.run(run())


def test_a_loop_that_has_nothing_to_do_waits_ever_longer_up_to_its_limit() -> None:
    polling = Polling(min_interval_ms=10.0, max_interval_ms=30.0, growth=2.0)
    waits = [0.0]
    for _ in range(4):
        waits.append(polling.next(waits[-1]))
    assert waits == [0.0, 10.0, 20.0, 30.0, 30.0]
    with pytest.raises(ValueError, match="intervals"):
        Polling(min_interval_ms=0.0)


def test_a_history_is_told_what_was_done(courier: Courier) -> None:
    courier.parent()
    courier.fork("c")
    courier.emit("x", "e1")
    courier.arm("p", 1.5)
    notes = Notes()
    with Relay(courier.dsn, observer=notes) as relay, TimerSweeper(courier.dsn, observer=notes) as sweeper:
        relay.tick()
        sweeper.sweep()
    told = [(name, value) for kind, name, value in notes.completions if kind == "ok"]
    assert ("relay.deliver", {"seqs": [1]}) in told
    assert ("relay.spawn", {"seqs": [1], "made": ["c"]}) in told
    assert ("relay.timers", {"fired": [["x", "p", 1.5]]}) in told
    assert json.loads(courier.rows("SELECT event FROM outbox")[0][0])["id"] == "timer:x:p:1.5:2"
