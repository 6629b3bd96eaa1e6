"""The relay through the contracts of a store and a transport: at least once, in order, whoever dies in between."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine.relay import AsyncStoreRelay, StoreRelay
from engine.store import AsyncPostgresStore, Emit, Event, Execution, PostgresStore, Spawn, TimerOp
from engine.transport import AsyncPostgresTransport, PostgresTransport
from engine.values import MAX_JSON_DEPTH, TooLarge
from stress.scripts.courier import Courier
from stress.scripts.node import Notes


class Dead(BaseException):
    """What a process feels when it is killed: nothing that it could handle."""


class Mortal:
    """A store or a transport whose caller dies before a call of that number, counted over all that share `count`."""

    def __init__(self, inner: Any, dies_at: int | None, count: list[str]) -> None:
        self._inner, self._dies_at, self._count = inner, dies_at, count

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if len(self._count) == self._dies_at:
                raise Dead
            self._count.append(name)
            return getattr(self._inner, name)(*arguments, **named)

        return call


@contextmanager
def relaying(courier: Courier, dies_at: int | None = None, **options: Any) -> Iterator[StoreRelay]:
    """A relay that dies before its call of that number."""
    calls: list[str] = []
    with PostgresStore.from_dsn(courier.dsn) as store, PostgresTransport.from_dsn(courier.dsn) as transport:
        yield StoreRelay(Mortal(store, dies_at, calls), Mortal(transport, dies_at, calls), **options)


def commit(courier: Courier, execution: Execution, **effects: Any) -> None:
    with PostgresStore.from_dsn(courier.dsn) as store:
        store.commit(execution, **effects)


def emits(*ids: str) -> list[Emit]:
    return [Emit("x", Event(id=each, kind="k")) for each in ids]


def first_deliveries(courier: Courier, group_id: str | None = None) -> list[str]:
    return list(dict.fromkeys(courier.delivered(group_id)))


@pytest.mark.parametrize("dies_at", range(7))
def test_a_relay_that_dies_before_any_call_loses_nothing_and_keeps_the_order(
    courier: Courier, dies_at: int
) -> None:
    commit(courier, Execution(id="e", definition_id="d"), emits=emits("e1", "e2", "e3"))
    with relaying(courier, dies_at) as relay:
        try:
            relay.deliver()
        except Dead:
            pass
    with relaying(courier) as relay:
        relay.deliver()
        assert relay.deliver() == 0
    assert first_deliveries(courier) == ["e1", "e2", "e3"]
    assert courier.outbox() == []


@pytest.mark.parametrize("dies_at", range(9))
def test_a_relay_that_dies_before_any_call_makes_each_child_once_and_starts_it(
    courier: Courier, dies_at: int
) -> None:
    parent = Execution(id="parent", definition_id="d", priority=2)
    commit(courier, parent, spawns=[Spawn("c1", "r", {"n": 1}), Spawn("c2", "r", {})])
    with relaying(courier, dies_at) as relay:
        try:
            relay.spawn()
        except Dead:
            pass
    with relaying(courier) as relay:
        relay.spawn()
        assert relay.spawn() == 0
    assert first_deliveries(courier) == ["start:c1", "start:c2"]
    versions = courier.rows("SELECT id, version FROM executions WHERE parent_id = 'parent' ORDER BY id")
    assert versions == [("c1", 1), ("c2", 1)]


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_what_is_emitted_to_a_child_waits_for_the_child_and_hides_nothing(
    courier: Courier, batch: int
) -> None:
    parent = Execution(id="parent", definition_id="d")
    told = [Emit(child, Event(id=f"{child}.{n}", kind="k")) for n in range(2) for child in ("c1", "c2", "c3")]
    commit(courier, parent, spawns=[Spawn(child, "r", {}) for child in ("c1", "c2", "c3")], emits=told)
    commit(courier, parent, emits=[Emit("parent", Event(id="e1", kind="k"))])
    with relaying(courier, batch=batch) as relay:
        assert relay.deliver() == 1
        assert courier.delivered() == ["e1"]
        while relay.spawn() + relay.deliver():
            pass
    for child in ("c1", "c2", "c3"):
        assert courier.delivered(child) == [f"start:{child}", f"{child}.0", f"{child}.1"]


def test_spawns_that_can_never_be_done_hold_up_no_other(courier: Courier) -> None:
    courier.fork("orphan1", "orphan2", parent_id="nobody")
    courier.rows(
        "INSERT INTO spawns (parent_id, child_id, root_path, context) VALUES ('parent', 'deep', 'r', %s)",
        '{"in":' * MAX_JSON_DEPTH + "{}" + "}" * MAX_JSON_DEPTH,
    )
    courier.parent()
    courier.fork("child")
    with relaying(courier, batch=1) as relay:
        assert relay.spawn() == 1
        assert relay.spawn() == 0
    assert courier.delivered() == ["start:child"]


@pytest.mark.parametrize("dies_at", range(5))
def test_a_sweep_that_dies_before_any_call_fires_each_timer_once(courier: Courier, dies_at: int) -> None:
    timers = [TimerOp("schedule", "p", 1.0), TimerOp("schedule", "q", 2.0), TimerOp("schedule", "r", 9.0)]
    for name in ("x", "y"):
        commit(courier, Execution(id=name, definition_id="d"), timers=timers)
    with relaying(courier, dies_at) as relay:
        try:
            relay.sweep(5.0)
        except Dead:
            pass
    with relaying(courier) as relay:
        relay.sweep(5.0)
        assert relay.sweep(5.0) == 0
    assert [each for _, each in courier.outbox()] == [
        f"timer:{name}:{path}:{at}:2" for name in ("x", "y") for path, at in (("p", 1.0), ("q", 2.0))
    ]
    assert courier.rows("SELECT execution_id, path FROM timers ORDER BY 1") == [("x", "r"), ("y", "r")]


class Overtaken:
    """A store whose caller is overtaken before its call of that name, once."""

    def __init__(self, inner: Any, name: str, between: Callable[[], object]) -> None:
        self._inner, self._name, self._between = inner, name, between

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._name = ""
            self._between()
        return getattr(self._inner, name)


ARM, CANCEL = TimerOp("schedule", "p", 1.0), TimerOp("cancel", "p")


@pytest.mark.parametrize("before", ["load", "commit"])
@pytest.mark.parametrize(
    ("timers", "left"),
    [([ARM], True), ([CANCEL, ARM], True), ([CANCEL], False)],
    ids=["armed anew", "cancelled and armed anew", "cancelled"],
)
def test_a_timer_that_changes_under_a_sweep_fires_as_what_it_has_become(
    courier: Courier, before: str, timers: list[TimerOp], left: bool
) -> None:
    execution = Execution(id="x", definition_id="d")
    commit(courier, execution, timers=[ARM])
    with PostgresStore.from_dsn(courier.dsn) as store:
        overtaken = Overtaken(store, before, lambda: commit(courier, execution, timers=timers))
        relay = StoreRelay(overtaken, None)  # type: ignore[arg-type]  # a sweep publishes nothing
        fired = [relay.sweep(5.0), relay.sweep(5.0)]
    # At the loaded version the new arming is the one that is seen; a version later the commit is refused.
    assert fired == ([left, 0] if before == "load" else [0, left])
    assert [each for _, each in courier.outbox()] == ["timer:x:p:1.0:3"] * left
    assert courier.rows("SELECT count(*) FROM timers") == [(0,)]


def test_a_timer_that_is_armed_again_for_the_same_instant_fires_again(courier: Courier) -> None:
    execution = Execution(id="x", definition_id="d")
    for _ in range(2):
        commit(courier, execution, timers=[ARM])
        with relaying(courier) as relay:
            assert relay.sweep(5.0) == 1
            relay.deliver()
        execution.version += 1  # the sweep's
    assert courier.delivered() == ["timer:x:p:1.0:2", "timer:x:p:1.0:4"]


def test_what_nobody_can_load_holds_up_no_other(courier: Courier) -> None:
    courier.rows(
        "INSERT INTO executions (id, definition_id, data, version) VALUES ('broken', 'd', 'no JSON', 1)"
    )
    courier.fork("orphan", parent_id="broken")
    courier.parent("x")
    courier.fork("child", parent_id="x")
    for path, owner in (("p", "broken"), ("p", "nobody"), ("p", "x")):
        courier.arm(path, 1.0, owner)
    with relaying(courier, batch=1) as relay:
        assert [relay.sweep(5.0), relay.sweep(5.0), relay.spawn(), relay.spawn()] == [1, 0, 1, 0]
    assert courier.rows("SELECT execution_id FROM timers ORDER BY 1") == [("broken",), ("nobody",)]


def test_a_relay_that_comes_late_with_what_it_read_repeats_but_does_not_overtake(courier: Courier) -> None:
    execution = Execution(id="e", definition_id="d")
    commit(courier, execution, emits=emits("e1", "e2"))
    with PostgresStore.from_dsn(courier.dsn) as store, PostgresTransport.from_dsn(courier.dsn) as transport:

        class Overtaken:
            """Between the reading and the publishing, another relay does the same and more."""

            def publish_many(self, items: Any) -> Any:
                with relaying(courier) as other:
                    other.deliver()
                    commit(courier, execution, emits=emits("e3"))
                    other.deliver()
                return transport.publish_many(items)

        StoreRelay(store, Overtaken()).deliver()
    assert first_deliveries(courier) == ["e1", "e2", "e3"]
    assert len(courier.delivered()) == 5


@pytest.mark.parametrize("batch", [1, 2, 10])
def test_what_is_emitted_to_a_child_waits_until_the_child_is_made(courier: Courier, batch: int) -> None:
    parent = Execution(id="parent", definition_id="d")
    spawns = [Spawn(child, "r", {}) for child in ("c1", "c2")]
    commit(courier, parent, spawns=spawns, emits=[Emit("c2", Event(id="e1", kind="k"))])
    with relaying(courier, batch=batch) as relay:
        delivered = [relay.deliver()]
        while relay.spawn():
            delivered.append(relay.deliver())
        assert delivered == [0] * (len(delivered) - 1) + [1]
    assert first_deliveries(courier, "c2") == ["start:c2", "e1"]


def test_an_observer_is_told_what_a_relay_takes_on_and_what_became_of_it(courier: Courier) -> None:
    notes = Notes()
    timers = [TimerOp("schedule", "p", 1.0)]
    parent = Execution(id="parent", definition_id="d")
    commit(courier, parent, spawns=[Spawn("c", "r", {})], emits=emits("e1"), timers=timers)
    with relaying(courier, observer=notes) as relay:
        for _ in range(2):  # the second time there is nothing to tell
            relay.deliver()
            relay.spawn()
            relay.sweep(5.0)
    assert notes.operations == [
        ("relay.deliver", {"seqs": [1]}),
        ("relay.spawn", {"seqs": [1]}),
        ("relay.timers", {}),
        (
            "store.commit",
            {
                "execution": "parent",
                "expected": 1,
                "event": None,
                "emits": 1,
                "timers": 1,
                "spawns": 0,
                "trace": False,
                "to": [["parent", "timer:parent:p:1.0:2"]],
            },
        ),
        ("relay.deliver", {"seqs": [2]}),
    ]
    assert notes.completions == [
        ("ok", "relay.deliver", {"seqs": [1]}),
        ("ok", "relay.spawn", {"seqs": [1]}),
        ("ok", "store.commit", {"version": 2}),
        ("ok", "relay.timers", {"fired": [["parent", "p", 1.0]]}),
        ("ok", "relay.deliver", {"seqs": [2]}),
    ]


def test_an_event_for_nobody_goes_to_the_handler_or_nowhere(courier: Courier) -> None:
    courier.emit(None, "e1")
    courier.emit("x", "e2")
    heard: list[str] = []
    with relaying(courier, on_broadcast=lambda event: heard.append(event.id)) as relay:
        assert relay.deliver() == 2
    courier.emit(None, "e3")
    with relaying(courier) as relay:
        assert relay.deliver() == 1
    assert (heard, courier.delivered(), courier.outbox()) == (["e1"], ["e2"], [])


def test_a_batch_is_bounded(courier: Courier) -> None:
    courier.emit("x", "e1", "e2", "e3")
    with relaying(courier, batch=2) as relay:
        assert [relay.deliver(), relay.deliver(), relay.deliver()] == [2, 1, 0]


def test_what_is_too_much_to_publish_at_once_is_published_in_parts_and_in_order(
    courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.statements.MAX_SENT_BYTES", 1_000)
    with relaying(courier) as relay:
        commit(courier, Execution(id="e", definition_id="d"), emits=emits("e1"))
        assert relay.deliver() == 1
        courier.emit("x", *(f"e{n}" for n in range(2, 22)))
        assert relay.deliver() == 20
        courier.emit("x", "\U0001d11e" * 300)
        with pytest.raises(TooLarge):
            relay.deliver()
    assert courier.delivered() == [f"e{n}" for n in range(1, 22)]
    assert len(courier.outbox()) == 1


def test_the_asynchronous_relay_does_the_same(courier: Courier) -> None:
    async def relay_all() -> list[int]:
        store = await AsyncPostgresStore.from_dsn(courier.dsn)
        heard: list[str] = []

        async def hear(event: Event) -> None:
            heard.append(event.id)

        async with await AsyncPostgresTransport.from_dsn(courier.dsn) as transport:
            relay = AsyncStoreRelay(store, transport, on_broadcast=hear)
            parent = Execution(id="parent", definition_id="d")
            effects: dict[str, Any] = {
                "spawns": [Spawn("c", "r", {})],
                "timers": [TimerOp("schedule", "p", 1.0)],
            }
            await store.commit(parent, emits=[*emits("e1"), Emit(None, Event(id="e2", kind="k"))], **effects)
            done = [await relay.deliver(), await relay.spawn(), await relay.spawn(), await relay.sweep(5.0)]
            child = await store.load("c")
            assert child is not None
            done.append(await relay.deliver())
            parent.version += 1  # the sweep's
            # A child that is there already is started again, under the same event.
            await store.commit(parent, spawns=[Spawn("c", "r", {})])
            done.append(await relay.spawn())
        closing = store.close()
        if inspect.isawaitable(closing):
            await closing
        assert heard == ["e2"]
        return done

    assert asyncio.run(relay_all()) == [2, 1, 0, 1, 1, 1]
    assert courier.delivered() == ["e1", "start:c", "timer:parent:p:1.0:2", "start:c"]
