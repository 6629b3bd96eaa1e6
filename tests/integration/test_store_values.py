"""Odd values: each comes back as it was, or is refused with one clear error, the same by every kind of store."""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import IntEnum, StrEnum
from functools import partial
from itertools import islice
from typing import Any

import pytest

from engine.operation import Operation
from engine.store import (
    Child,
    Commit,
    Emit,
    Event,
    Spawn,
    Store,
    TimerOp,
    UnstorableValue,
    encoding,
    operations,
)
from engine.store.shards import shard_of
from engine.transport import PostgresTransport
from engine.transport.queue import Publication, Queue
from engine.values import MAX_INDEXED_BYTES, TooLarge
from tests.fixtures.stores import KINDS, execution

kinds = pytest.mark.parametrize("backend", KINDS, indirect=True)
# Four bytes each.
CLEF = "\U0001d11e"


class Flag(IntEnum):
    ON = 1


class Word(StrEnum):
    KEY = "key"


TIMES = {
    "the epoch": 0.0,
    "before the epoch": -1.5,
    "a zero with a sign": -0.0,
    "year 1": -62_135_596_800.0,
    "year 9999": 253_402_300_799.999,
    "a microsecond": 1_700_000_000.123456,
    "less than a microsecond": 1_700_000_000.1234567,
    "a whole number": 1_700_000_000,
    "the least": 5e-324,
    "the greatest": 1.7976931348623157e308,
    "the smallest": -1.7976931348623157e308,
}
NO_TIMES: dict[str, Any] = {
    "not a number": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "beyond a float": 10**400,
    "between two floats": 2**53 + 1,
    "a truth": True,
    "a text": "1.0",
    "nothing": None,
}


@kinds
def test_a_timer_is_due_at_its_very_instant_and_can_be_deleted_by_it(store: Store) -> None:
    paths = {path: TimerOp("schedule", path, fire_at) for path, fire_at in TIMES.items()}
    store.commit(execution(), timers=list(paths.values()))
    due = store.due_timers(1.7976931348623157e308)
    assert {path: repr(fire_at) for _, path, fire_at in due} == {
        path: repr(float(fire_at) + 0.0) for path, fire_at in TIMES.items()
    }
    assert [fire_at for _, _, fire_at in due] == sorted(fire_at for _, _, fire_at in due)
    assert store.due_timers(1_700_000_000.12345)[-1][1] == "a whole number"
    for path, fire_at in TIMES.items():
        store.delete_timer("e", path, fire_at)
    assert store.due_timers(1.7976931348623157e308) == []


@kinds
def test_what_is_no_instant_is_refused(store: Store) -> None:
    store.save(execution())
    for fire_at in NO_TIMES.values():
        with pytest.raises(UnstorableValue, match="fire_at"):
            store.commit(execution(version=1), timers=[TimerOp("schedule", "p", fire_at)])
        with pytest.raises(UnstorableValue, match="fire_at"):
            store.delete_timer("e", "p", fire_at)
        with pytest.raises(UnstorableValue, match="now"):
            store.due_timers(fire_at)
    assert store.due_timers(1e300) == []


WHOLE = [2**53 + 1, -(2**53) - 1, 2**63, -(2**63) - 1, 2**64, 10**4_000]


@kinds
def test_numbers_keep_every_digit_and_sign(store: Store) -> None:
    context = {"whole": WHOLE, "floats": [-0.0, 0.0, 5e-324, 1e16, 1.0, 0.1 + 0.2], "truth": [True, 1, 1.0]}
    child = Child(root_path="r", result=context)
    subject = execution(context=context, children={"c": child}, invoke_seq=2**70, armed={"p": -0.0})
    store.commit(
        subject,
        emits=[("t", Event(id="1", kind="k", payload=context))],
        spawns=[("c", "r", context)],
        trace=context,
    )
    loaded = store.load("e")
    assert loaded is not None
    assert repr(loaded.context) == repr(loaded.children["c"].result) == repr(context)
    assert (loaded.invoke_seq, repr(loaded.armed)) == (2**70, "{'p': -0.0}")
    [(_, _, event)] = store.pending_outbox()
    [(*_, seed)] = store.pending_spawns()
    [step] = store.read_trace("e")
    assert repr(dict(event.payload)) == repr(seed) == repr(context)
    assert repr(step) == repr({**context, "index": 0})


TEXTS = [
    " ",
    "\x01\x1f\x7f\x80",
    "\u2028\u2029\ufeff",
    "a\u0308",
    "\u00e4",
    CLEF,
    "'; --",
    "\\",
    "%s",
    "{}",
    "NULL",
]


@kinds
def test_ids_are_what_they_are_byte_by_byte(store: Store) -> None:
    names = [*TEXTS, "\u00e4".upper(), "A", "a"]
    for name in names:
        subject = execution(name, active_path=name, outcome=name, root_path=name, definition_id=name)
        store.commit(subject, processed_event_id=name, timers=[TimerOp("schedule", name, 1.0)])
    for name in names:
        loaded, processed = store.load_for_event(name, name)
        assert loaded is not None
        assert (loaded.id, loaded.active_path, loaded.outcome, processed) == (name, name, name, True)
        assert [each.id for each in store.list_executions(definition_id=name).items] == [name]
    assert [each.id for each in store.list_executions().items] == sorted(names, key=str.encode)
    assert {(of, path) for of, path, _ in store.due_timers(1.0)} == {(name, name) for name in names}


BAD_TEXTS: list[Any] = ["a\x00", "\ud800", "x" * 1_001, CLEF * 251, 5, None, b"x"]


@kinds
def test_what_can_be_no_id_is_refused_wherever_it_is_asked_for(store: Store) -> None:
    asked: list[Callable[[Any], object]] = [
        store.load,
        store.read_trace,
        lambda bad: store.load_for_event(bad, "e"),
        lambda bad: store.load_for_event("e", bad),
        lambda bad: store.is_processed(bad, "e"),
        lambda bad: store.is_processed("e", bad),
        lambda bad: store.delete_timer(bad, "p", 1.0),
        lambda bad: store.delete_timer("e", bad, 1.0),
        lambda bad: store.append_trace(bad, {}),
        lambda bad: store.save(execution(bad)),
        lambda bad: store.commit(execution(), timers=[TimerOp("schedule", bad, 1.0)]),
        lambda bad: store.commit(execution(), spawns=[Spawn(bad, "r", {})]),
        lambda bad: store.commit(execution(), emits=[Emit("t", Event(id=bad, kind="k"))]),
        lambda bad: store.list_executions(definition_id=bad or "\x00"),
    ]
    for bad in BAD_TEXTS:
        for ask in asked:
            with pytest.raises(UnstorableValue):
                ask(bad)
    assert store.list_executions().items == ()


@kinds
def test_the_longest_ids_fit_every_index_in_bytes(store: Store) -> None:
    # Nothing that compresses: an index row holds what is left.
    draw = random.Random(1)
    ids = ["".join(chr(draw.randrange(0x10000, 0x20000)) for _ in range(250)) for _ in range(3)]
    assert {len(each.encode()) for each in ids} == {1_000}
    one, two, three = ids
    subject = execution(one, definition_id=two, parent_id=three)
    effects: dict[str, Any] = {"emits": [(two, Event(id=three, kind="k"))], "spawns": [(three, "r", {})]}
    store.commit(subject, processed_event_id=two, timers=[TimerOp("schedule", three, 1.0)], **effects)
    assert store.load_for_event(one, two)[1]
    assert store.due_timers(1.0) == [(one, three, 1.0)]
    assert [each.id for each in store.list_executions(status="PENDING", definition_id=two).items] == [one]


KEYS: dict[str, Any] = {
    "twice as text": {1: "number", "1": "text"},
    "nothing": {None: 1},
    "a truth": {True: 1},
    "a float": {1.5: 1},
    "half a pair": {"\udfff": 1},
    "deep down": {"a": [{"b": ({2: 3},)}]},
}


@kinds
def test_keys_that_would_come_back_as_others_are_refused(store: Store) -> None:
    for context in KEYS.values():
        for commit in (
            {"execution": execution(context=context)},
            {"execution": execution(), "emits": [("t", Event(id="1", kind="k", payload=context))]},
            {"execution": execution(), "spawns": [("c", "r", context)]},
            {"execution": execution(), "trace": context},
        ):
            with pytest.raises(UnstorableValue):
                store.commit(**commit)
    store.save(execution(context={Word.KEY: Word.KEY, "flag": Flag.ON}))
    loaded = store.load("e")
    assert loaded is not None
    assert loaded.context == {"key": "key", "flag": 1}


@kinds
def test_a_context_of_another_kind_or_of_no_end_is_refused(store: Store) -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    bad: list[Any] = [endless, [], None, "text", {"n": 10**5_000}, {"b": b"x"}, {"d": 1j}]
    for context in bad:
        with pytest.raises(UnstorableValue):
            store.save(execution(context=context))
    for field in (
        {"priority": True},
        {"priority": 1.0},
        {"priority": -1},
        {"version": True},
        {"version": 1.0},
    ):
        with pytest.raises(UnstorableValue):
            store.save(execution(**field))
    assert store.load("e") is None


@kinds
def test_a_seq_that_nobody_was_given_takes_nothing_and_one_that_is_none_is_refused(store: Store) -> None:
    store.commit(execution(), emits=[("t", Event(id="1", kind="k"))], spawns=[("c", "r", {})])
    bad: list[Any] = [2**63, -(2**63) - 1, 2**200, "1", 1.0, True, None]
    for ack in (store.ack_outbox, store.ack_spawn):
        for seq in bad:
            with pytest.raises(UnstorableValue, match="seq"):
                ack(seq)
        ack((2**63 - 1) // 2_048 * 1_024)
    assert (len(store.pending_outbox()), len(store.pending_spawns())) == (1, 1)


@kinds
def test_a_batch_is_bounded_by_the_bytes_that_are_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (encoding, operations):
        monkeypatch.setattr(module, "MAX_SENT_BYTES", 4_000)

    def commit(name: str, text: str) -> Commit:
        return Commit(execution=execution(name, context={"t": text}))

    # 500 characters of four bytes; 500 that are escaped twice, in JSON and as an element of an array.
    for number, text in enumerate(("x" * 2_000, CLEF * 500, '"' * 500)):
        # Of one shard, where there are several.
        names = list(islice((f"{number}.{n}" for n in range(99) if shard_of(f"{number}.{n}", 2) == 0), 3))
        assert store.commit_many([commit(names[0], text)]) == [None]
        with pytest.raises(TooLarge):
            store.commit_many([commit(name, text) for name in names[1:]])
        with pytest.raises(TooLarge):
            store.save(execution(names[1], context={"t": text * 2}))
        [refusal, done] = store.commit_many([commit(names[1], text * 2), commit(names[2], "")])
        assert (type(refusal), done) == (TooLarge, None)
        assert [store.load(name) is not None for name in names] == [True, False, True]


# ------------------------------------------------------------------------------------------------- the transport


def refused(make: Callable[[], Operation[Any]]) -> bool:
    """Whether it is refused before anything is sent."""
    try:
        operation = make()
        next(operation)
    except UnstorableValue:
        return True
    return False


def test_a_transport_refuses_what_its_server_would_before_it_is_sent() -> None:
    queue = Queue()
    for text in ("a\x00", "\ud800", 5, None):
        bad: Any = text
        assert refused(partial(queue.publish, [Publication(bad, "e")]))
        assert refused(partial(queue.nack, bad, "t", 0.0))
        assert refused(partial(queue.nack, "g", bad, 0.0))
        assert refused(partial(queue.extend, bad, "t", 0.0))
        assert refused(partial(queue.set_priority, bad, 0))
        if bad is not None:
            assert refused(partial(queue.claim, 1, token=bad))
            assert refused(partial(queue.depth, bad))
            assert refused(partial(queue.groups, 1, bad))
    for number in (True, 1.0, -1, 2**70, float("nan"), "1"):
        whole: Any = number
        assert refused(partial(queue.publish, [Publication("g", "e", whole)]))
        assert refused(partial(queue.set_priority, "g", whole))
        assert refused(partial(queue.claim, whole))
        assert whole == -1 or refused(partial(queue.claim, 1, min_priority=whole))
        assert refused(partial(queue.groups, whole, None))
    for amount in (-1.0, float("nan"), float("inf"), 1e300, True, "1", 10**400):
        seconds: Any = amount
        assert refused(partial(queue.claim, 1, lease=seconds))
        assert refused(partial(queue.nack, "g", "t", seconds))
        assert refused(partial(queue.extend, "g", "t", seconds))


def test_a_group_is_as_long_as_its_index_takes_in_bytes_and_leases_are_floats(database: str) -> None:
    longest = CLEF * (MAX_INDEXED_BYTES // 4)
    with PostgresTransport.from_dsn(database) as transport:
        with pytest.raises(UnstorableValue, match="2004 bytes"):
            transport.publish(longest + CLEF, "e")
        transport.publish(longest, CLEF, priority=4)
        for lease in (0.0, 5e-324, 0.1 + 0.2, 100 * 365.25 * 86_400):
            message = transport.claim(lease=lease)
            assert message is not None
            assert (message.group_id, message.event) == (longest, CLEF)
            assert transport.nack(longest, message.token)
        with pytest.raises(UnstorableValue, match="seq"):
            transport.ack(longest, 2**63, "t")
        assert not transport.ack(longest, 2**63 - 1, "t")
