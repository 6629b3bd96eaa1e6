"""Charts are checked when they are made, and a step is a pure function of execution and event."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import pytest

from engine.statechart import Chart, Go, InvalidChart, Scope, State, began, start_event, step
from engine.statechart.step import CANCEL, FINISHED, START, TIMER, Effects, child_id_of, failed
from engine.store.encoding import MAX_KEY_BYTES, key
from engine.store.execution import Child, Emit, Event, Execution
from engine.values import MAX_INDEXED_BYTES, MAX_JSON_DEPTH, UnstorableValue

NOW = 1_000.0


def note(word: str) -> Any:
    def chore(scope: Scope) -> None:
        scope.context.setdefault("log", []).append(word)

    chore.__name__ = word
    return chore


def tell(scope: Scope) -> None:
    scope.emit("somebody", "told", {"n": 1})


def explode(scope: Scope) -> None:
    scope.context["half"] = True
    scope.emit("somebody", "never")
    raise RuntimeError("boom")


CHART = Chart(
    "order",
    State(
        "order",
        initial="cart",
        exit=note("order-exit"),
        on={"drop": Go("dropped"), "back": Go("work/*")},
        states=(
            State(
                "cart",
                on={"go": Go("../work", do=note("go")), "explode": Go(None, do=explode)},
                exit=note("cart-exit"),
            ),
            State(
                "work",
                initial="one",
                entry=note("work-entry"),
                exit=note("work-exit"),
                on={"pause": Go("../cart")},
                states=(
                    State(
                        "one",
                        entry=note("one-entry"),
                        after=Go("../two", delay_s=5.0),
                        on={"tell": Go(None, do=tell)},
                    ),
                    State(
                        "two",
                        on={
                            "split": Go("../../split"),
                            "maybe": Go("../one", when=lambda s: bool(s.context.get("ok"))),
                        },
                    ),
                ),
            ),
            State(
                "split",
                joined=Go("../done"),
                regions=(
                    State(
                        "left",
                        initial="a",
                        states=(State("a", on={"end": Go("../z")}), State("z", final=True)),
                    ),
                    State(
                        "right",
                        initial="b",
                        states=(State("b", on={"end": Go("../y")}), State("y", final=True, outcome="fine")),
                    ),
                ),
            ),
            State("dropped", final=True, outcome="dropped"),
            State("done", final=True),
        ),
    ),
)


def event(kind: str, **payload: Any) -> Event:
    return Event(id=f"e-{kind}", kind=kind, payload=payload)


def after(*kinds: str | Event, execution: Execution | None = None) -> Effects:
    """The effects of the last of some events, on an execution that was started and saved after each."""
    current = execution or began(CHART, "x")
    effects = step(CHART, current, start_event("x"), NOW)
    for kind in kinds:
        effects.execution.version += 1
        effects = step(CHART, effects.execution, event(kind) if isinstance(kind, str) else kind, NOW)
    return effects


def test_an_execution_begins_as_its_chart_says_and_is_set_off_by_an_event_of_its_own() -> None:
    execution = began(CHART, "x", {"a": 1})
    assert (execution.id, execution.definition_id, execution.root_path) == ("x", "order", "order")
    assert (execution.context, began(CHART, "x").context) == ({"a": 1}, {})
    assert start_event("x") == Event(id="start:x", kind="start")


def test_a_start_enters_down_the_initial_states() -> None:
    effects = after()
    assert (effects.execution.status, effects.execution.active_path) == ("RUNNING", "order/cart")


def test_an_event_that_overtakes_the_start_sets_the_execution_off_and_is_handled() -> None:
    effects = step(CHART, began(CHART, "x"), event("go"), NOW)
    assert (effects.execution.status, effects.execution.active_path) == ("RUNNING", "order/work/one")
    assert effects.execution.context["log"] == ["cart-exit", "go", "work-entry", "one-entry"]
    late = step(CHART, effects.execution, start_event("x"), NOW)
    assert (late.execution, late.emits, late.timers) == (effects.execution, [], [])


def test_a_transition_runs_exits_its_chore_and_entries_in_order_and_arms_timers() -> None:
    effects = after("go")
    assert effects.execution.active_path == "order/work/one"
    assert effects.execution.context["log"] == ["cart-exit", "go", "work-entry", "one-entry"]
    assert [(op.action, op.path, op.fire_at) for op in effects.timers] == [
        ("schedule", "order/work/one", 1_005.0)
    ]
    assert effects.execution.armed == {"order/work/one": 1_005.0}


def test_a_step_is_traced() -> None:
    moved = after("go")
    assert moved.trace == {
        "event": "go",
        "event_id": "e-go",
        "from": "order/cart",
        "to": "order/work/one",
        "actions": [
            "order/cart:cart-exit",
            "order/cart:go",
            "order/work:work-entry",
            "order/work/one:one-entry",
        ],
    }
    exploded = after("explode").trace
    assert exploded == {
        "event": "explode", "event_id": "e-explode", "from": "order/cart", "to": "order/cart", "actions": [],
    }  # fmt: skip
    assert after("go", "pause").trace == {
        "event": "pause",
        "event_id": "e-pause",
        "from": "order/work/one",
        "to": "order/cart",
        "actions": ["order/work:work-exit"],
    }


def test_a_chore_without_a_name_is_traced_as_one() -> None:
    chart = Chart("c", State("c", on={"go": Go(None, do=partial(tell))}))
    begun = step(chart, began(chart, "x"), start_event("x"), NOW).execution
    traced = step(chart, begun, event("go"), NOW).trace
    assert traced is not None
    assert traced["actions"] == ["c:chore"]


def test_a_chore_sees_its_execution_its_parent_and_the_event() -> None:
    seen: list[tuple[Any, ...]] = []

    def look(scope: Scope) -> None:
        seen.append((scope.execution_id, scope.parent_id, scope.context, scope.event))

    chart = Chart("c", State("c", on={"go": Go(None, do=look)}))
    execution = Execution(id="x", definition_id="c", root_path="c", parent_id="p", context={"a": 1})
    step(chart, execution, event("go"), NOW)
    assert seen == [("x", "p", {"a": 1}, event("go"))]


def test_a_start_that_comes_late_is_no_event_of_the_chart() -> None:
    chart = Chart(
        "c",
        State("c", initial="a", states=(State("a", on={START: Go("../b")}), State("b"))),
    )
    begun = step(chart, began(chart, "x"), start_event("x"), NOW).execution
    assert step(chart, begun, start_event("x"), NOW).execution.active_path == "c/a"


def test_a_timer_that_matches_is_taken_and_one_that_does_not_is_late() -> None:
    late = after("go", event(TIMER, path="order/work/one", fire_at=1_004.0))
    assert late.execution.active_path == "order/work/one"
    assert late.timers == []
    fired = after("go", event(TIMER, path="order/work/one", fire_at=1_005.0))
    assert fired.execution.active_path == "order/work/two"
    assert fired.execution.armed == {}
    assert [(op.action, op.path) for op in fired.timers] == [("cancel", "order/work/one")]


def test_a_timer_that_leads_to_its_own_state_is_armed_once_more() -> None:
    chart = Chart("c", State("c", initial="a", states=(State("a", after=Go("../a", delay_s=5.0)),)))
    begun = step(chart, began(chart, "x"), start_event("x"), NOW).execution
    again = step(chart, begun, event(TIMER, path="c/a", fire_at=NOW + 5.0), NOW + 6.0)
    assert [(op.action, op.fire_at) for op in again.timers] == [("cancel", 0.0), ("schedule", NOW + 11.0)]


def test_leaving_disarms_and_a_cancelled_timer_changes_nothing() -> None:
    left = after("go", "pause")
    assert [(op.action, op.path) for op in left.timers] == [("cancel", "order/work/one")]
    left.execution.version += 1
    late = step(CHART, left.execution, event(TIMER, path="order/work/one", fire_at=1_005.0), NOW)
    assert late.execution == left.execution


def test_a_composite_is_entered_where_it_was_left() -> None:
    moved = after("go", event(TIMER, path="order/work/one", fire_at=1_005.0), "pause", "back")
    assert moved.execution.active_path == "order/work/two"
    assert after("back").execution.active_path == "order/work/one"


def test_a_guard_that_says_no_leaves_the_event_to_the_parent_and_then_to_nobody() -> None:
    at_two = after("go", event(TIMER, path="order/work/one", fire_at=1_005.0)).execution
    assert step(CHART, at_two, event("maybe"), NOW).execution == at_two
    at_two.context["ok"] = True
    assert step(CHART, at_two, event("maybe"), NOW).execution.active_path == "order/work/one"


def test_emits_have_the_same_ids_when_the_step_is_run_again() -> None:
    at_one = after("go").execution
    first, second = (step(CHART, at_one, event("tell"), NOW) for _ in range(2))
    assert first.emits == second.emits
    assert first.emits == [
        Emit("somebody", Event(id=f"x:{at_one.version + 1}:0", kind="told", payload={"n": 1}))
    ]


def test_a_step_leaves_the_execution_that_it_was_given_as_it_was() -> None:
    given = after("go").execution
    before = deepcopy(given)
    step(CHART, given, event("drop"), NOW)
    assert given == before
    forked = split()
    before = deepcopy(forked.execution)
    step(CHART, forked.execution, event(FINISHED, child_id=forked.spawns[0].child_id), NOW)
    assert forked.execution == before


def split() -> Effects:
    return after("go", event(TIMER, path="order/work/one", fire_at=1_005.0), "split")


def test_a_fork_spawns_a_child_of_each_region_and_joins_when_the_last_has_ended() -> None:
    forked = split()
    left, right = forked.spawns
    assert (left.root_path, right.root_path) == ("order/split/left", "order/split/right")
    execution = forked.execution
    assert execution.invoke_seq == 1
    assert [spawn.child_id for spawn in forked.spawns] == [
        child_id_of("x", 1, spawn.root_path) for spawn in forked.spawns
    ]
    assert len(left.child_id) == 32
    assert left.context == right.context == execution.context
    assert execution.children == {spawn.child_id: Child(root_path=spawn.root_path) for spawn in forked.spawns}
    strange = step(CHART, execution, event(FINISHED, child_id="nobody's"), NOW)
    assert strange.execution == execution
    for n, (child, outcome) in enumerate(((left, "z"), (right, "fine"))):
        finished = event(FINISHED, child_id=child.child_id, outcome=outcome, result=n)
        for _ in range(2):  # delivered twice
            execution = step(CHART, execution, finished, NOW).execution
        assert (execution.status == "DONE") == (n == 1)
        if n == 0:
            assert execution.children[child.child_id] == Child(
                root_path=child.root_path, finished=True, outcome="z", result=0
            )
    assert (execution.active_path, execution.outcome) == ("order/done", "done")


def test_a_child_runs_its_region_and_tells_its_parent() -> None:
    spawn = split().spawns[1]
    child = Execution(
        id=spawn.child_id,
        definition_id="order",
        root_path=spawn.root_path,
        parent_id="x",
        context={"result": 7},
    )
    child = step(CHART, child, start_event(child.id), NOW).execution
    assert child.active_path == "order/split/right/b"
    ended = step(CHART, child, event("end"), NOW)
    assert (ended.execution.status, ended.execution.outcome) == ("DONE", "fine")
    [emit] = ended.emits
    assert (emit.target_id, emit.event.kind) == ("x", FINISHED)
    assert emit.event.payload == {"child_id": child.id, "outcome": "fine", "result": 7}


def test_leaving_a_fork_cancels_the_children_that_still_run() -> None:
    forked = split()
    left, right = forked.spawns
    execution = step(CHART, forked.execution, event(FINISHED, child_id=left.child_id), NOW).execution
    dropped = step(CHART, execution, event("drop"), NOW)
    assert [(emit.target_id, emit.event.kind, emit.event.payload) for emit in dropped.emits] == [
        (right.child_id, CANCEL, {})
    ]
    assert (dropped.execution.status, dropped.execution.children) == ("DONE", {})


def test_the_children_of_the_next_fork_are_others() -> None:
    forked = split()
    again = deepcopy(forked.execution)
    again.active_path, again.children = "order/work/two", {}
    assert {spawn.child_id for spawn in step(CHART, again, event("split"), NOW).spawns}.isdisjoint(
        spawn.child_id for spawn in forked.spawns
    )


def test_a_chore_that_raises_fails_the_execution_and_nothing_else_of_the_step_remains() -> None:
    failed = after("explode")
    assert (failed.execution.status, failed.execution.error) == ("FAILED", "RuntimeError: boom")
    assert failed.execution.outcome == "failed"
    assert "half" not in failed.execution.context
    assert failed.emits == []


class _Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def _explode_mutely(_: Scope) -> None:
    raise _Mute


def test_an_event_that_the_chart_can_make_no_step_of_fails_the_execution() -> None:
    begun = after().execution
    unheard_of = step(CHART, begun, Event(id="e", kind=TIMER, payload={"path": []}), NOW)
    assert unheard_of.execution.status == "FAILED"
    mute = Chart("mute", State("mute", on={"go": Go(None, do=_explode_mutely)}))
    begun = step(mute, began(mute, "m"), start_event("m"), NOW).execution
    assert step(mute, begun, event("go"), NOW).execution.error == "_Mute"


def test_what_has_ended_does_not_fail() -> None:
    ended = after("go", CANCEL).execution
    again = failed(CHART, ended, event("go"), NOW, "cannot be stored")
    assert (again.execution, again.emits) == (ended, [])


def test_a_context_as_deep_as_a_store_takes_is_stepped_through_a_deep_stack() -> None:
    context: dict[str, Any] = {}
    for _ in range(MAX_JSON_DEPTH - 2):
        context = {"in": context}
    begun = step(CHART, began(CHART, "o", context), start_event("o"), NOW).execution

    def deep(frames: int) -> Effects:
        return deep(frames - 1) if frames else step(CHART, begun, event("split"), NOW)

    assert deep(100).execution.status == "RUNNING"


def test_every_id_that_is_made_of_the_longest_is_an_id() -> None:
    longest = "x" * MAX_KEY_BYTES
    begun = step(CHART, began(CHART, longest), start_event(longest), NOW).execution
    working = step(CHART, begun, event("go"), NOW).execution
    told = [start_event(longest), *(emit.event for emit in step(CHART, working, event("tell"), NOW).emits)]
    assert len(told) == 2
    assert all(key("event.id", each.id) for each in told)


def test_a_state_that_a_new_version_of_the_chart_lacks_is_not_gone_back_to() -> None:
    execution = after("go", "pause").execution
    execution.history = dict.fromkeys(execution.history, "order/work/of_old_version")
    assert step(CHART, execution, event("back"), NOW).execution.status == "RUNNING"


def test_what_neither_runs_nor_has_ended_is_offered_no_event() -> None:
    for execution in (after().execution, after().execution):
        execution.status = "SUSPENDED"
        taken = step(CHART, execution, event("go"), NOW)
        assert (taken.execution, taken.emits, taken.timers) == (execution, [], [])


def test_a_cancel_ends_it_and_disarms_its_timers() -> None:
    cancelled = after("go", CANCEL)
    assert (cancelled.execution.status, cancelled.execution.outcome) == ("CANCELLED", "cancelled")
    assert [op.action for op in cancelled.timers] == ["cancel"]
    assert step(CHART, cancelled.execution, event("pause"), NOW).execution == cancelled.execution


def test_a_composite_that_was_never_entered_begins_at_its_beginning() -> None:
    chart = Chart(
        "c",
        State("c", initial="a", on={"back": Go("b/*")}, states=(
            State("a"), State("b", initial="two", states=(State("one"), State("two"))),
        )),
    )  # fmt: skip
    begun = step(chart, began(chart, "x"), start_event("x"), NOW).execution
    assert step(chart, begun, event("back"), NOW).execution.active_path == "c/b/two"


def test_only_what_does_not_hold_both_ends_is_left_and_entered() -> None:
    chart = Chart(
        "c",
        State("c", initial="w", entry=note("c"), states=(
            State("w", initial="a", entry=note("w"), states=(
                State("a", on={"go": Go("../b"), "here": Go(".")}), State("b", entry=note("b")),
            )),
        )),
    )  # fmt: skip
    begun = step(chart, began(chart, "x"), start_event("x"), NOW).execution
    assert begun.context["log"] == ["c", "w"]
    moved = step(chart, begun, event("go"), NOW).execution
    assert moved.context["log"] == ["c", "w", "b"]
    assert step(chart, begun, event("here"), NOW).execution.active_path == "c/w/a"


def test_a_chart_knows_whose_each_of_its_states_is() -> None:
    # Made here: what a module makes as it is read was made by the code as it is.
    chart = Chart("other-name", CHART["order"])
    assert chart.definition_id == "other-name"
    assert [chart.region_of(f"order{path}") for path in ("", "/cart", "/work/one", "/split")] == ["order"] * 4
    assert chart.region_of("order/split/left") == chart.region_of("order/split/left/a") == "order/split/left"
    assert chart.runs("order", None)
    assert chart.runs("order", "order/work/one")
    assert chart.runs("order/split/left", "order/split/left/a")
    assert not chart.runs("order", "order/split/left/a")
    assert not chart.runs("order/split/left", "order/cart")
    assert not chart.runs("order", "order/gone")
    assert not chart.runs("order/cart", None)
    once = State("r", initial="a", states=(State("a", after=Go("../a", delay_s=0.0)),))
    assert Chart("r", once)["r/a"].after == Go("../a", delay_s=0.0)


@pytest.mark.parametrize(("name", "why"), [("", "empty"), ("x" * (MAX_INDEXED_BYTES + 1), "bytes")])
def test_what_a_chart_is_called_and_its_paths_are_keys(name: str, why: str) -> None:
    if why == "bytes":
        with pytest.raises(UnstorableValue, match=r"^definition_id is"):
            Chart(name, State("r"))
        with pytest.raises(UnstorableValue, match=r"^path is"):
            Chart("r", State("r", initial=name, states=(State(name),)))
    else:
        with pytest.raises(InvalidChart, match="named ''"):
            Chart("r", State(name))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (State("r", initial=".", states=(State("."),)), r"named '\.'"),
        (State("r", initial="..", states=(State(".."),)), r"named '\.\.'"),
        (
            State("r", initial="a", states=(State("a"),), final=True),
            "can be composite, a fork or final, only one of them",
        ),
        (State("r", initial="a", states=(State("a", after=Go("../a", delay_s=-1.0)),)), r"waits for -1\.0"),
        (
            State("r", initial="a", states=(State("a", after=Go("../a", delay_s=float("inf"))),)),
            "waits for inf",
        ),
        (State("r", initial="a"), "needs states and an initial one"),
        (State("r", initial="b", states=(State("a"),)), "begins in 'b'"),
        (State("r", initial="a", states=(State("a"), State("a"))), "named twice"),
        (State("r", on={"e": Go("nowhere")}), "there is no state"),
        (State("r", regions=(State("a"),)), "needs regions and a way on"),
        (
            State("r", initial="a", states=(State("a", final=True, on={"e": Go("../a")}),)),
            "is final and goes on",
        ),
        (
            State("r", initial="a", states=(State("a", after=Go("../a", delay_s=float("nan"))),)),
            "waits for nan",
        ),
        (State("r", initial="a", states=(State("a", after=Go(None, delay_s=1.0)),)), "must go somewhere"),
        (State("r", initial="a/b", states=(State("a/b"),)), "named 'a/b'"),
        (
            State(
                "r",
                initial="f",
                states=(
                    State("f", regions=(State("a", on={"e": Go("../../g")}),), joined=Go("../g")),
                    State("g"),
                ),
            ),
            "another execution runs",
        ),
        (State("r", initial="a", states=(State("a"), State("b", on={"e": Go("../a/*")}))), "not composite"),
    ],
)
def test_a_chart_that_cannot_be_run_is_refused(state: State, why: str) -> None:
    with pytest.raises(InvalidChart, match=why):
        Chart("r", state)
