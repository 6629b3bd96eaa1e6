"""The contract of every store: what callers may rely on, whichever of them they hold, on both paths of a commit.

Run over each kind of `tests.fixtures.stores`, and over the published package `harel` where it is installed; where that
is known to differ, `tests.fixtures.harel_subject` says so, and the test must fail there in the way that is declared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

import pytest

from engine.store import (
    Child,
    Commit,
    Emit,
    Event,
    EventAlreadyProcessed,
    Execution,
    Spawn,
    Store,
    StoreConflict,
    TimerOp,
    UnstorableValue,
)
from engine.values import MAX_JSON_DEPTH
from tests.fixtures import harel_subject
from tests.fixtures.stores import ALL, KINDS, NOTHING, TIMEOUT_S, Backend, do, effects, event, execution, full

WRITERS, ROUNDS = 32, 3

pytestmark = pytest.mark.parametrize(
    "backend", [*KINDS, *(["harel"] if harel_subject.IMPORTABLE else [])], indirect=True
)


def bare(subject: Execution, mark: str) -> Commit:
    """A state-only commit; the event's marker is part of the fast path."""
    return Commit(execution=subject, processed_event_id=mark)


both_paths = pytest.mark.parametrize("path", [bare, full], ids=["state only", "with effects"])
Path = Callable[[Execution, str], Commit]


def at_once(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all in threads of their own that start together; an exception is an answer."""
    barrier = threading.Barrier(len(acts))

    def run(act: Callable[[], Any]) -> Any:
        barrier.wait(TIMEOUT_S)
        try:
            return act()
        except Exception as error:  # noqa: BLE001
            return error

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(run, acts))


# ------------------------------------------------------------------------------------------------ what comes back


def test_what_was_never_saved_is_not_there(store: Store) -> None:
    assert store.load("nobody") is None
    assert not store.is_processed("nobody", "event")
    assert store.list_executions().items == ()


def test_an_execution_that_is_not_there_processed_nothing(store: Store) -> None:
    assert store.load_for_event("nobody", "event") == (None, False)


def test_every_field_of_an_execution_comes_back(store: Store) -> None:
    subject = execution(
        definition_fqn="a.b", root_path="r", status="SUSPENDED", outcome="paid", error="ValueError: no",
        active_path="r/s", history={"r": "r/s"}, context={"n": 1, "list": [1, 2.5, None, True, {"x": "y"}]},
        priority=4, parent_id="p", child_id="c", invoke_seq=7,
        children={"c1": Child(root_path="r", finished=True, outcome="done", result={"n": 1})},
    )  # fmt: skip
    store.save(subject)

    assert store.load("e") == subject
    assert subject.version == 1


@both_paths
def test_each_commit_adds_one_to_the_version(store: Store, path: Path) -> None:
    subject = execution()
    for version in (1, 2, 3):
        subject.context = {"n": version}
        do(store, path(subject, f"m{version}"))
        assert subject.version == version
        assert store.load("e") == subject


CONTEXTS: dict[str, dict[str, Any]] = {
    "empty": {},
    "NUL": {"a\x00b": "\x00", "plain": "\\u0000"},
    "odd text": {"": "\ufeff\u2028\U0010ffff\ud7ff\uffff'\"\\{}%s%(x)s$1:name?", "é": "é"},
    "big numbers": {"int": 2**200, "negative": -(10**400), "float": 1.7976931348623157e308, "tiny": 5e-324},
    "precise": {"third": 1 / 3, "zero": -0.0, "whole": 1e16, "one": 1.0},
    "nested": {"deep": [[[[{"a": [{"b": [[]]}]}]]]] * 3},
    "large": {"text": "x" * 300_000, "list": list(range(10_000))},
}


def test_whatever_json_can_express_comes_back_equal(store: Store) -> None:
    for name, context in CONTEXTS.items():
        subject = execution(name, context=context)
        store.commit(
            subject,
            emits=[("t", event(name, **context))],
            spawns=[("c", "r", context)],
            trace={"entry": context},
        )

        loaded = store.load(name)
        assert loaded is not None
        assert repr(loaded.context) == repr(context)
        # As text: 0.0 == -0.0 and 1 == True.
        (emitted,) = [each for _, _, each in store.pending_outbox() if each.id == name]
        assert repr(dict(emitted.payload)) == repr(context)
        (forked,) = [row[4] for row in store.pending_spawns() if row[1] == name]
        assert repr(forked) == repr(context)
        assert store.read_trace(name) == [{"entry": context, "index": 0}]
        subject.context = {}
        store.save(subject)


def test_a_context_deep_down_comes_back_equal(store: Store) -> None:
    context: dict[str, Any] = {}
    for _ in range(450):
        context = {"down": context}
    store.save(execution(context=context))

    loaded = store.load("e")
    assert loaded is not None
    assert loaded.context == context


def test_no_context_keeps_a_listing_from_being_read(store: Store) -> None:
    store.save(execution("a", context={"text": "\x00"}))
    store.save(execution("b", context={"n": 10**400}))

    assert [each.id for each in store.list_executions(status="PENDING").items] == ["a", "b"]


# ------------------------------------------------------------------------------------------------- what is refused


def unstorable() -> dict[str, Commit]:
    good, long = execution("bad"), "x" * 5000
    return {
        "NaN": Commit(execution=execution("bad", context={"n": float("nan")})),
        "infinity": Commit(execution=execution("bad", context={"n": float("inf")})),
        "half a surrogate pair": Commit(execution=execution("bad", context={"s": "\ud800"})),
        "key that is no text": Commit(execution=execution("bad", context={1: "one"})),
        "set": Commit(execution=execution("bad", context={"s": {1}})),
        "object": Commit(execution=execution("bad", context={"s": object()})),
        "too deep": Commit(execution=execution("bad", context={"s": [[[]] * 2] * 2, "d": deep(600)})),
        "NUL in the id": Commit(execution=execution("b\x00d")),
        "long id": Commit(execution=execution(long)),
        "id that is no text": Commit(execution=execution(5)),  # type: ignore[arg-type]
        "long event": Commit(execution=good, processed_event_id=long),
        "long path": Commit(execution=good, timers=[TimerOp("schedule", long, 1.0)]),
        "NUL in a path": Commit(execution=good, timers=[TimerOp("schedule", "a\x00", 1.0)]),
        "NUL in the active path": Commit(execution=execution("bad", active_path="a\x00")),
        "timer at no time": Commit(execution=good, timers=[TimerOp("schedule", "p", float("nan"))]),
        "timer at the end of time": Commit(execution=good, timers=[TimerOp("schedule", "p", float("inf"))]),
        "timer far too late": Commit(execution=good, timers=[TimerOp("schedule", "p", 10**400)]),
        "timer that does neither": Commit(execution=good, timers=[TimerOp("arm", "p", 1.0)]),  # type: ignore[arg-type]
        "unknown status": Commit(execution=execution("bad", status="LOST")),
        "priority": Commit(execution=execution("bad", priority=5)),
        "field of another type": Commit(execution=execution("bad", history={"a": 1})),
        "last version": Commit(execution=execution("bad", version=2**31 - 1)),
        "negative version": Commit(execution=execution("bad", version=-1)),
        "NaN in an event": Commit(execution=good, emits=[Emit("t", event("1", n=float("nan")))]),
        "NaN in a spawn": Commit(execution=good, spawns=[Spawn("c", "r", {"n": float("nan")})]),
        "NaN in a step": Commit(execution=good, trace={"n": float("nan")}),
        "step that is no object": Commit(execution=good, trace=[1]),  # type: ignore[arg-type]
        "child of no name": Commit(execution=good, spawns=[Spawn(None, "r", {})]),  # type: ignore[arg-type]
    }


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_what_cannot_be_stored_is_refused(store: Store) -> None:
    kept = []
    for name, bad in unstorable().items():
        version = bad.execution.version
        try:
            do(store, bad)
        except UnstorableValue:
            assert bad.execution.version == version
        else:
            kept.append(name)
    assert kept == []
    assert store.list_executions().items == ()
    assert (store.pending_outbox(), store.pending_spawns()) == ([], [])


def test_what_cannot_be_stored_harms_no_other_in_its_batch(store: Store) -> None:
    bad = list(unstorable().values())
    good = [execution(f"e{n:02}") for n in range(len(bad))]
    commits = [commit for n, b in enumerate(bad) for commit in (full(good[n], f"m{n}"), b)]

    answers = store.commit_many(commits)
    assert [type(answer) for answer in answers] == [type(None), UnstorableValue] * len(bad)
    assert {subject.version for subject in good} == {1}
    assert [each.id for each in store.list_executions().items] == [subject.id for subject in good]
    assert effects(store, "e05", "m5") == ALL
    assert len(store.pending_outbox()) == 2 * len(good)


def test_a_trace_without_a_size_is_refused(backend: Backend) -> None:
    for trace_max in (0, -1, True, 2**40, None):
        with pytest.raises(ValueError, match="trace_max"):
            backend.open(trace_max=trace_max)


def test_a_reading_without_bounds_is_refused(store: Store) -> None:
    limits: list[Any] = [0, -1, 10_001, "5"]
    for limit in limits:
        for read in (store.pending_outbox, store.pending_spawns, lambda n: store.due_timers(1.0, n)):
            with pytest.raises(ValueError, match="limit"):
                read(limit)
        with pytest.raises(ValueError, match="limit"):
            store.list_executions(limit=limit)


def test_a_batch_without_bounds_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="10001"):
        store.commit_many([bare(execution(), "m")] * 10_001)
    assert store.load("e") is None


# ---------------------------------------------------------------------------------------------- compare and set


@both_paths
def test_all_effects_of_a_commit_are_there(store: Store, path: Path) -> None:
    subject = execution()
    do(store, path(subject, "m"))

    assert effects(store, "e", "m") == (ALL if path is full else (0, 1, 0, 0, 0))
    assert store.is_processed("e", "m")
    assert not store.is_processed("other", "m")


def test_an_execution_is_read_together_with_an_events_marker(store: Store) -> None:
    subject = execution()
    do(store, bare(subject, "m"))

    assert store.load_for_event("e", "m") == (subject, True)
    assert store.load_for_event("e", "other") == (subject, False)


@both_paths
def test_a_stale_commit_is_told_the_version_found_and_changes_nothing(store: Store, path: Path) -> None:
    subject = execution()
    do(store, path(subject, "m1"))
    stale = store.load("e")
    assert stale is not None
    do(store, path(subject, "m2"))
    do(store, path(subject, "m3"))

    with pytest.raises(StoreConflict) as raised:
        do(store, path(stale, "m4"))
    assert (raised.value.execution_id, raised.value.expected, raised.value.found) == ("e", 1, 3)
    assert type(raised.value) is StoreConflict
    assert stale.version == 1
    assert store.load("e") == subject
    assert effects(store, "e", "m4") == NOTHING
    do(store, path(subject, "m5"))
    assert subject.version == 4


@both_paths
def test_a_commit_of_what_is_gone_finds_none(store: Store, path: Path) -> None:
    lost = execution(version=3)
    with pytest.raises(StoreConflict) as raised:
        do(store, path(lost, "m"))
    assert (raised.value.expected, raised.value.found, lost.version) == (3, None, 3)
    assert store.load("e") is None
    assert effects(store, "e", "m") == NOTHING


@both_paths
def test_a_second_first_save_is_a_conflict(store: Store, path: Path) -> None:
    do(store, path(execution(), "m1"))
    second = execution()
    with pytest.raises(StoreConflict) as raised:
        do(store, path(second, "m2"))
    assert (raised.value.expected, raised.value.found, second.version) == (0, 1, 0)


@both_paths
def test_an_event_that_was_processed_is_refused_whatever_its_caller_looked_up(
    store: Store, path: Path
) -> None:
    subject = execution()
    do(store, path(subject, "m"))
    before = store.load("e")

    with pytest.raises(EventAlreadyProcessed) as raised:
        do(store, path(subject, "m"))
    assert (raised.value.expected, raised.value.found, subject.version) == (1, 1, 1)
    assert store.load("e") == before
    assert effects(store, "e", "m") == (ALL if path is full else (0, 1, 0, 0, 0))
    do(store, path(subject, "other"))


@both_paths
def test_an_event_with_an_empty_id_is_an_event(store: Store, path: Path) -> None:
    do(store, path(execution(), ""))
    assert store.is_processed("e", "")


@both_paths
def test_of_many_writers_at_one_version_one_wins_and_the_others_find_its(
    backend: Backend, path: Path
) -> None:
    stores = [backend.open() for _ in range(WRITERS)]
    subject = execution()
    stores[0].save(subject)
    for round_ in range(ROUNDS):
        copies = [store.load("e") for store in stores]
        marks = [f"m{round_}.{n}" for n in range(WRITERS)]

        def write(n: int, copies: Sequence[Any] = copies, marks: Sequence[str] = marks) -> None:
            do(stores[n], path(copies[n], marks[n]))

        answers = at_once([lambda n=n: write(n) for n in range(WRITERS)])  # type: ignore[misc]
        (winner,) = [n for n, answer in enumerate(answers) if answer is None]
        lost = [answer for answer in answers if answer is not None]
        assert {type(answer) for answer in lost} == {StoreConflict}
        assert {(answer.expected, answer.found) for answer in lost} == {(round_ + 1, round_ + 2)}
        versions = [copy.version for copy in copies if copy is not None]
        assert versions == [round_ + 1 + (n == winner) for n in range(WRITERS)]
        assert [mark for mark in marks if stores[0].is_processed("e", mark)] == [marks[winner]]
        for other in (n for n in range(WRITERS) if n != winner):
            assert effects(stores[winner], "e", marks[other]) == NOTHING
            break
    assert len(stores[0].pending_outbox()) == ROUNDS * len(path(subject, "").emits)


@both_paths
def test_of_many_first_saves_one_wins_and_the_others_find_it(backend: Backend, path: Path) -> None:
    stores = [backend.open() for _ in range(WRITERS)]
    for round_ in range(ROUNDS):
        subjects = [execution(f"e{round_}") for _ in stores]

        def write(n: int, subjects: Sequence[Execution] = subjects) -> None:
            do(stores[n], path(subjects[n], f"m{n}"))

        answers = at_once([lambda n=n: write(n) for n in range(WRITERS)])  # type: ignore[misc]
        lost = [answer for answer in answers if answer is not None]
        assert len(lost) == WRITERS - 1
        assert {type(answer) for answer in lost} == {StoreConflict}
        assert {(answer.expected, answer.found) for answer in lost} == {(0, 1)}
        assert sum(subject.version for subject in subjects) == 1


def test_a_reading_sees_what_another_store_committed_before(backend: Backend) -> None:
    reader, writer = backend.open(), backend.open()
    subject = execution()
    for version in range(1, 6):
        do(writer, full(subject, f"m{version}"))
        seen = reader.load("e")
        assert seen is not None
        assert seen.version == version
        assert reader.is_processed("e", f"m{version}")
        assert reader.list_executions().items[0].version == version
        assert len(reader.pending_outbox()) == len(reader.pending_spawns()) * 2 == version * 2
        assert len(reader.due_timers(10.0)) == len(reader.read_trace("e")) == version


def test_threads_may_share_a_store(store: Store) -> None:
    def work(n: int) -> None:
        subject = execution(f"e{n}")
        for m in range(10):
            do(store, (full if m % 2 else bare)(subject, f"m{n}.{m}"))
            stale = execution(f"e{n}")
            with pytest.raises(StoreConflict):
                do(store, (bare if m % 2 else full)(stale, f"no{n}.{m}"))
            assert store.load(f"e{n}") == subject

    assert at_once([lambda n=n: work(n) for n in range(8)]) == [None] * 8  # type: ignore[misc]
    assert len(store.pending_outbox()) == 8 * 5 * 2


# ----------------------------------------------------------------------------------------------------- effects


def test_events_wait_in_the_order_of_their_emission(store: Store) -> None:
    subject = execution()
    for commit in range(3):
        store.commit(subject, emits=[("t", event(f"{commit}.{n}")) for n in range(20)])

    waiting = store.pending_outbox()
    assert [each.id for _, _, each in waiting] == [f"{commit}.{n}" for commit in range(3) for n in range(20)]
    assert [seq for seq, _, _ in waiting] == sorted({seq for seq, _, _ in waiting})
    assert store.pending_outbox(limit=2) == waiting[:2]


def test_an_event_may_be_meant_for_nobody_and_hold_anything(store: Store) -> None:
    store.commit(execution(), emits=[Emit(None, event("1", n=[1, {"a": None}])), ("t", event("2"))])
    assert [(target, each) for _, target, each in store.pending_outbox()] == [
        (None, event("1", n=[1, {"a": None}])),
        ("t", event("2")),
    ]


def test_acks_take_away_one_each_and_an_acked_seq_is_never_drawn_again(store: Store) -> None:
    subject = execution()
    do(store, full(subject, "m1"))
    (first, second), (spawn,) = store.pending_outbox(), store.pending_spawns()
    store.ack_outbox(second[0])
    store.ack_outbox(second[0])
    store.ack_spawn(spawn[0])
    assert store.pending_outbox() == [first]
    assert store.pending_spawns() == []

    do(store, full(subject, "m2"))
    store.ack_outbox(second[0])
    store.ack_spawn(spawn[0])
    assert effects(store, "e", "m2") == ALL


def test_children_wait_in_the_order_of_their_fork(store: Store) -> None:
    forks = [Spawn(f"c{n}", f"region{n}", {"n": n}) for n in range(20)]
    store.commit(execution("parent"), spawns=forks)

    waiting = store.pending_spawns()
    assert [row[1:] for row in waiting] == [("parent", s.child_id, s.root_path, s.context) for s in forks]
    assert store.pending_spawns(limit=3) == waiting[:3]


def test_timers_are_due_oldest_first_up_to_now(store: Store) -> None:
    times = [3.0, 1.0, 2.5, 1e9 + 1 / 3, -1.0]
    store.commit(execution(), timers=[TimerOp("schedule", f"p{t}", t) for t in times])

    assert store.due_timers(2.5) == [("e", "p-1.0", -1.0), ("e", "p1.0", 1.0), ("e", "p2.5", 2.5)]
    assert store.due_timers(2.0**40)[-1] == ("e", f"p{times[3]}", times[3])
    assert store.due_timers(2.0**40, limit=1) == [("e", "p-1.0", -1.0)]


def test_the_last_operation_on_a_timer_counts(store: Store) -> None:
    subject = execution()
    store.commit(
        subject,
        timers=[
            TimerOp("schedule", "a", 1.0), TimerOp("schedule", "a", 2.0), TimerOp("cancel", "b"),
            TimerOp("schedule", "b", 3.0), TimerOp("schedule", "c", 4.0), TimerOp("cancel", "c"),
        ],
    )  # fmt: skip
    assert store.due_timers(10.0) == [("e", "a", 2.0), ("e", "b", 3.0)]

    store.commit(
        subject, timers=[TimerOp("cancel", "a"), TimerOp("schedule", "b", 5.0), TimerOp("cancel", "none")]
    )
    assert store.due_timers(10.0) == [("e", "b", 5.0)]


def test_a_timer_that_was_armed_anew_survives_the_sweep_of_the_old_one(store: Store) -> None:
    subject = execution()
    store.commit(subject, timers=[TimerOp("schedule", "p", 1.0)])
    (seen,) = store.due_timers(10.0)
    store.commit(subject, timers=[TimerOp("schedule", "p", 1.0 + 2**-40)])
    store.delete_timer(*seen)
    assert store.due_timers(10.0) == [("e", "p", 1.0 + 2**-40)]

    store.delete_timer("other", "p", 1.0 + 2**-40)
    store.delete_timer("e", "p", 1.0 + 2**-40)
    assert store.due_timers(10.0) == []


def test_the_ring_keeps_the_last_steps_under_their_own_index(backend: Backend) -> None:
    store = backend.open(trace_max=3)
    subject = execution()
    for n in range(7):
        if n % 2:
            store.append_trace("e", {"n": n})
        else:
            store.commit(subject, trace={"n": n})
        kept = range(max(0, n - 2), n + 1)
        assert store.read_trace("e") == [{"n": m, "index": m} for m in kept]
    store.commit(execution("f"), trace={"n": 0})
    assert store.read_trace("f") == [{"n": 0, "index": 0}]


def test_steps_that_come_at_once_from_everywhere_get_an_index_each(backend: Backend) -> None:
    stores = [backend.open(trace_max=1000) for _ in range(6)]

    def append(store: Store) -> None:
        for n in range(10):
            store.append_trace("e", {"by": "append", "n": n})

    def commit(store: Store) -> None:
        subject = execution()
        for n in range(10):
            store.commit(subject, trace={"by": "commit", "n": n})

    acts = [lambda store=store: append(store) for store in stores[:5]]
    assert at_once([*acts, lambda: commit(stores[5])]) == [None] * 6
    steps = stores[0].read_trace("e")
    assert [step["index"] for step in steps] == list(range(60))
    assert [step["n"] for step in steps if step["by"] == "commit"] == list(range(10))


# ------------------------------------------------------------------------------------------------------ batches


def test_an_empty_batch_is_answered_with_nothing(store: Store) -> None:
    assert store.commit_many([]) == []


def test_a_batch_is_answered_commit_by_commit(store: Store) -> None:
    there, gone = execution("there"), execution("gone", version=2)
    do(store, full(there, "seen"))
    subjects = [execution(f"e{n:03}") for n in range(200)]
    commits = [full(subject, f"m{n}") for n, subject in enumerate(subjects)]
    commits[7:7] = [full(execution("there"), "x"), full(gone, "y"), bare(there, "seen"), bare(there, "z")]

    answers = store.commit_many(commits)
    refused = {n: answer for n, answer in enumerate(answers) if answer is not None}
    assert list(refused) == [7, 8, 9]
    assert [(type(refused[n]), getattr(refused[n], "found", 0)) for n in (7, 8, 9)] == [
        (StoreConflict, 1),
        (StoreConflict, None),
        (EventAlreadyProcessed, 1),
    ]
    assert {subject.version for subject in subjects} == {1}
    assert there.version == 2
    for n in (0, 199):
        assert effects(store, f"e{n:03}", f"m{n}") == ALL
    for mark in ("x", "y"):
        assert effects(store, "there", mark) == NOTHING
    by_emitter = [each.id for _, _, each in store.pending_outbox() if each.id.startswith("m7-")]
    assert by_emitter == ["m7-1", "m7-2"]


def test_commits_of_one_execution_in_a_batch_come_one_after_the_other(store: Store) -> None:
    subject, other = execution(), execution()
    answers = store.commit_many(
        [
            full(subject, "a"), full(other, "no"), full(subject, "b"), bare(subject, "b"), full(subject, "c"),
            full(execution(version=3), "stale by then"),
        ]
    )  # fmt: skip

    assert [type(answer) for answer in answers] == [
        type(None), StoreConflict, type(None), EventAlreadyProcessed, type(None), type(None),
    ]  # fmt: skip
    assert (subject.version, other.version) == (3, 0)
    conflict = answers[1]
    assert isinstance(conflict, StoreConflict)
    assert conflict.found == 1
    assert [step["mark"] for step in store.read_trace("e")] == ["a", "b", "c", "stale by then"]
    loaded = store.load("e")
    assert loaded is not None
    assert loaded.version == 4


def test_batches_of_the_same_executions_in_opposite_orders_wait_in_no_circle(backend: Backend) -> None:
    stores = [backend.open() for _ in range(4)]

    def work(n: int) -> None:
        store = stores[n]
        for round_ in range(10):
            ids = [f"e{m}" for m in range(round_ * 2 + 2)]
            subjects = [store.load(id_) or execution(id_) for id_ in ids]
            answers = store.commit_many(
                [full(s, f"{n}.{round_}.{s.id}") for s in (subjects[::-1] if n % 2 else subjects)]
            )
            assert {type(answer) for answer in answers} <= {type(None), StoreConflict}

    assert at_once([lambda n=n: work(n) for n in range(4)]) == [None] * 4  # type: ignore[misc]
    for summary in stores[0].list_executions().items:
        assert len(stores[0].read_trace(summary.id)) == summary.version


# ------------------------------------------------------------------------------------------------------ listing


def listed(store: Store, limit: int, **filters: Any) -> list[str]:
    ids, cursor = [], None
    while True:
        page = store.list_executions(limit=limit, cursor=cursor, **filters)
        ids += [each.id for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return ids


def test_a_listing_is_filtered_and_complete_and_in_id_order(store: Store) -> None:
    every = []
    for n in range(20):
        status = ("PENDING", "RUNNING", "DONE")[n % 3]
        parent = None if n % 2 else "p"
        store.save(execution(f"e{n:02}", status=status, definition_id=f"d{n % 4}", parent_id=parent))
        every.append((f"e{n:02}", status, f"d{n % 4}", parent))

    for limit in (1, 3, 7, 20, 21):
        assert listed(store, limit) == [e[0] for e in every]
        assert listed(store, limit, status="DONE") == [e[0] for e in every if e[1] == "DONE"]
        assert listed(store, limit, status=["DONE", "RUNNING", "DONE"]) == [
            e[0] for e in every if e[1] != "PENDING"
        ]
        assert listed(store, limit, definition_id="d1") == [e[0] for e in every if e[2] == "d1"]
        assert listed(store, limit, roots_only=True) == [e[0] for e in every if e[3] is None]
        assert listed(store, limit, status=["DONE"], definition_id="d2", roots_only=False) == [
            e[0] for e in every if (e[1], e[2]) == ("DONE", "d2")
        ]
    assert listed(store, 5, status="CANCELLED") == []


def test_a_summary_says_what_the_execution_says(store: Store) -> None:
    store.save(execution(status="DONE", outcome="paid", active_path="a/b", parent_id="p"))
    (item,) = store.list_executions().items
    found = [
        item.id,
        item.definition_id,
        item.version,
        item.status,
        item.outcome,
        item.active_path,
        item.parent_id,
    ]
    assert found == ["e", "d", 1, "DONE", "paid", "a/b", "p"]


def test_ids_sort_by_code_point_everywhere(store: Store) -> None:
    ids = ["B", "a", "Z", "_", "é", "\U0001f600", "\uffff", "aa", "-a", "10", "9"]
    for each in ids:
        store.save(execution(each))
    assert listed(store, 2) == sorted(ids)


def test_paging_meets_each_that_stays_exactly_once_while_others_come_and_go(store: Store) -> None:
    stay = [f"m{n:02}" for n in range(12)]
    for each in stay:
        store.save(execution(each, status="RUNNING"))
    leave = [execution(f"a{n}", status="RUNNING") for n in range(6)]
    for each_ in leave:
        store.save(each_)

    ids, cursor = [], None
    for turn in range(100):
        page = store.list_executions(status="RUNNING", limit=3, cursor=cursor)
        ids += [each.id for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
        # Before the cursor and behind it: some come, some go.
        store.save(execution(f"0{turn:02}", status="RUNNING"))
        store.save(execution(f"z{turn % 9:02}.{turn}", status="DONE"))
        for _ in range(2):
            if leave:
                gone = leave.pop()
                gone.status = "DONE"
                store.save(gone)
    assert sorted(each for each in ids if each in stay) == stay
    assert len(ids) == len(set(ids))


def test_a_cursor_that_nobody_gave_is_refused(store: Store) -> None:
    cursors: list[Any] = ["", "x", "AAAA", "MQ", 5, "MTp-AA", "\ud800"]
    for cursor in cursors:
        with pytest.raises(UnstorableValue):
            store.list_executions(cursor=cursor)


def test_an_unknown_status_is_refused(store: Store) -> None:
    with pytest.raises(UnstorableValue, match="LOST"):
        store.list_executions(status=["DONE", "LOST"])


class Word(str, Enum):  # noqa: UP042  # a StrEnum is its text for everybody
    """What some call their states and events by."""

    PAID = "paid"


def test_a_member_of_an_enumeration_is_the_text_that_it_stands_for(store: Store) -> None:
    subject = execution(outcome=Word.PAID, active_path=Word.PAID)
    store.commit(
        subject,
        emits=[Emit(Word.PAID, Event(id=Word.PAID, kind=Word.PAID))],
        processed_event_id=Word.PAID,
        timers=[TimerOp("schedule", Word.PAID, 1.0)],
    )
    store.save(subject)
    [(_, target, told)] = store.pending_outbox()
    assert (target, told.id) == ("paid", "paid")
    assert store.is_processed("e", "paid")
    assert store.due_timers(2.0) == [("e", "paid", 1.0)]
    [summary] = store.list_executions().items
    assert (summary.outcome, summary.active_path) == ("paid", "paid")


def test_a_spawn_whose_child_could_not_be_stored_is_refused(store: Store) -> None:
    context: dict[str, Any] = {}
    for _ in range(MAX_JSON_DEPTH - 1):
        context = {"in": context}
    store.commit(execution(), spawns=[Spawn("c", "r", context)])
    [(_, _, _, _, stored)] = store.pending_spawns()
    store.save(execution("c", context=stored))
    with pytest.raises(UnstorableValue, match="deep"):
        store.commit(execution("f"), spawns=[Spawn("d", "r", {"in": context})])
