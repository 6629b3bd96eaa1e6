"""The models of the store and of the transport by themselves: the rules that they state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.store import Commit, Event, Execution, TimerOp
from models import store, transport

RING = 2


def draft(execution_id: str = "a", version: int = 0) -> Execution:
    return Execution(id=execution_id, definition_id="d", version=version)


def committed(state: store.State, *commits: Commit) -> store.State:
    for each in commits:
        state, refused = store.commit(state, each, trace_max=RING)
        assert refused is None
    return state


def test_a_commit_at_another_version_is_refused_with_the_version_found_and_changes_nothing() -> None:
    state = committed(store.State(), Commit(execution=draft()))
    for version in (0, 2):
        after, refused = store.commit(state, Commit(execution=draft(version=version)), trace_max=RING)
        assert (after, refused) == (state, store.Refused("a", version, 1, False))


def test_an_event_that_was_processed_is_refused_whatever_the_version() -> None:
    state = committed(store.State(), Commit(execution=draft(), processed_event_id=""))
    for version in (0, 1):
        wanted = Commit(execution=draft(version=version), processed_event_id="")
        after, refused = store.commit(state, wanted, trace_max=RING)
        assert (after, refused) == (state, store.Refused("a", version, 1, True))


def test_an_object_that_is_committed_twice_in_a_batch_brings_its_new_version() -> None:
    execution = draft()
    batch = [Commit(execution=execution), Commit(execution=draft()), Commit(execution=execution)]
    state, answers, won = store.commit_many(store.State(), batch, trace_max=RING)
    assert answers == [None, store.Refused("a", 0, 1, False), None]
    assert won[id(execution)] == 2
    assert store.version_of(state, "a") == 2


def test_of_several_operations_on_one_timer_the_last_counts() -> None:
    ops = [TimerOp("schedule", "p", 1.0), TimerOp("cancel", "p"), TimerOp("schedule", "p", 2.0)]
    state = committed(store.State(), Commit(execution=draft(), timers=ops))
    assert state.timers == {("a", "p"): 2.0}
    assert store.delete_timer(state, "a", "p", 1.0) == state
    assert store.delete_timer(state, "a", "p", 2.0).timers == {}


def test_a_trace_keeps_its_last_steps_and_their_numbers() -> None:
    state = store.State()
    for number in range(4):
        state = store.append_trace(state, "a", {"n": number}, trace_max=RING)
    assert store.read_trace(state, "a") == ['{"index":2,"n":2}', '{"index":3,"n":3}']


def test_values_that_python_takes_for_equal_are_told_apart() -> None:
    assert len({store.canonical({"n": value}) for value in (1, 1.0, True, 0, 0.0, -0.0, False)}) == 7
    assert store.canonical({"a": 1, "b": 2}) == store.canonical({"b": 2, "a": 1})


def emitted(*ids: str) -> store.State:
    emits = [("x", Event(id=event_id, kind="k")) for event_id in ids]
    return committed(store.State(), Commit(execution=draft(), emits=emits))


def test_numbers_are_taken_over_where_they_keep_the_order_of_an_emitter() -> None:
    rows = emitted("e1", "e2").outbox
    (_, first), (_, second) = rows
    assert store.numbered(rows, {4: first, 9: second}, "emitter") == ((4, first), (9, second))
    for stored in ({4: second, 9: first}, {4: first}, {4: first, 9: second, 10: replace(first, event="{}")}):
        with pytest.raises(AssertionError):
            store.numbered(rows, stored, "emitter")


def published(*groups: str) -> transport.State:
    state = transport.State()
    for seq, group in enumerate(groups, 1):
        state = transport.publish(state, [(group, f"m{seq}", None)], [seq], float(seq))
    return state


def test_claims_go_by_waiting_and_an_acknowledged_group_goes_to_the_end() -> None:
    state = published("b", "a", "b")
    state, first = transport.claim(state, 1, token="t1", lease=9, min_priority=0, now=10)
    state, second = transport.claim(state, 5, token="t2", lease=9, min_priority=0, now=10)
    assert [(each.group_id, each.seq) for each in (*first, *second)] == [("b", 1), ("a", 2)]
    state, answers = transport.ack(state, [("b", 1, "t1"), ("a", 2, "t1"), ("b", 3, "t1")], 11)
    assert answers == [True, False, False]
    assert state.groups["b"] == transport.Group(None, 11, 0)


def test_a_lease_that_lapsed_is_its_holders_until_it_is_taken_over() -> None:
    state, _ = transport.claim(published("g"), 1, token="old", lease=1, min_priority=0, now=10)
    late, done = transport.ack(state, [("g", 1, "old")], 99)
    assert (done, late) == ([True], transport.State())
    state, _ = transport.claim(state, 1, token="new", lease=1, min_priority=0, now=11)
    assert transport.nack(state, "g", "old", 5, 12) == (state, False)
    assert transport.ack(state, [("g", 1, "old")], 12) == (state, [False])


def test_a_claim_passes_over_what_is_below_its_floor_or_locked() -> None:
    state = transport.publish(transport.State(), [("low", "m", 0), ("high", "m", 3)], [1, 2], 0)
    _, handed = transport.claim(state, 9, token="t", lease=1, min_priority=1, now=0)
    assert [each.group_id for each in handed] == ["high"]
    _, handed = transport.claim(state, 9, token="t", lease=1, min_priority=0, now=0, locked={"high"})
    assert [each.group_id for each in handed] == ["low"]


def test_a_message_that_is_not_its_groups_latest_is_no_answer() -> None:
    state = published("g", "g")
    with pytest.raises(AssertionError, match="not its latest"):
        transport.publish(state, [("g", "m", None)], [2], 9)
