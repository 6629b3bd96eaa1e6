"""What a load put the engine through is counted, while it lasted and not after."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from invariants.exercise import EXERCISES
from invariants.render import print_exercises
from invariants.stored_exercise import STORED_EXERCISES
from invariants.verdict import exercises
from tests.fixtures.store_traces import StoreTrace, clock
from tests.fixtures.traces import Trace


def phase(trace: Trace, name: str) -> None:
    trace.did("harness", "phase", {"phase": name}, {"phase": name})
    # Transactions come a second apart: what follows lies behind the phase's begin.
    trace.change(99).commit()


def everything(trace: Trace) -> None:
    """One of each."""
    first = len(trace.rows) + 100
    trace.insert(first, rate_limit="r:x")
    trace.insert(first + 1, concurrency_key="g:1")
    trace.claim(first, first + 1, name=f"a.{first}")
    trace.admit(f"a.{first}", denied=[first, first + 1])
    trace.release(first, f"a.{first}")
    trace.release(first + 1, f"a.{first}")
    trace.level("conc", "g:1", 0, 1, 0).commit()
    trace.level("conc", "g:1", 0, 1, 1).commit()
    trace.insert(first + 2)
    trace.claim(first + 2, name=f"b.{first}")
    trace.outcome(first + 2, f"b.{first}", "continue", "executing", turn="1").flushed()
    trace.outcome(first + 2, f"b.{first}", "await", "awaiting_signal", awaits="{go}")
    trace.signal(first + 2, "go")
    trace.change(first + 2, status="runnable").flushed()
    trace.insert(first + 3)
    trace.change(first + 3, status="awaiting_children").commit()
    trace.change(first + 3, status="runnable").commit()
    for f, result in (
        ("reconcile", {}),
        ("sweep_buckets", {"dropped": 1}),
        ("sweep_buckets", {"dropped": 0}),
        ("gc", {"ids": [1]}),
        ("reap", {"xid": None, "holds": [[1, "x"]]}),
        ("expire", {"ids": [1], "xid": None}),
        ("notify", {}),
        ("roll", {"did": {"nodes replaced": 1}}),
    ):
        trace.did("node", f, {}, result)
    trace.did("node", "count", {"event": "poke_dropped", "amount": 1}, None)
    trace.rate("r", first, 1)


def test_each_exercise_is_counted_between_the_phase_load_and_the_next() -> None:
    trace = Trace()
    everything(trace)
    phase(trace, "load")
    everything(trace)
    phase(trace, "drain")
    everything(trace)
    assert trace.judge().exercised == {**dict.fromkeys(EXERCISES, 1), "denials": 2}


def test_a_history_without_phases_counts_as_a_whole() -> None:
    trace = Trace()
    everything(trace)
    everything(trace)
    assert trace.judge().exercised == {**dict.fromkeys(EXERCISES, 2), "denials": 4}


def test_without_a_history_nothing_is_counted() -> None:
    trace = Trace()
    everything(trace)
    assert trace.judge(history=False).exercised == {}


def test_what_did_not_happen_is_not_exercised() -> None:
    assert exercises({"joins": 3, "reaps": 0}) == {
        "joins": {"count": 3, "finding": "exercised"},
        "reaps": {"count": 0, "finding": "not_exercised"},
    }
    console = Console(file=io.StringIO())
    print_exercises(console, {"gc_deletes": 3000, "reaps": 0})
    assert console.file.getvalue() == "under load: 3,000 gc deletes; not exercised: reaps\n"  # type: ignore[attr-defined]


def parent(trace: StoreTrace, version: int, children: dict[str, bool], **columns: Any) -> StoreTrace:
    """A version of an execution that waits for children: which, and whether each has ended."""
    told = {child: {"root_path": "r", "finished": finished} for child, finished in children.items()}
    data = json.dumps({"version": version, "children": told})
    return trace.put(
        "executions", "p", "d", data, version, columns.get("status", "RUNNING"), None, None, None
    )


def everything_stored(trace: StoreTrace, round_: int) -> None:
    """One of each."""
    name = f"e{round_}"
    late, timely = clock(0.0), clock(1_000.0)
    trace.commit(name, 1, emits=[("x", name)], arm=[("fires", late), ("late", late), ("timely", timely)])
    trace.commit(name, 2, cancel=["late", "timely"])
    trace.refused(name, 1, 2)
    trace.told(name, 1, event="m", kind="fail", result={"error": "EventAlreadyProcessed", "found": 2})
    trace.did("worker", "count", {"event": "processed_before", "amount": 0}, None)
    trace.drop("timers", name, "fires").done()
    trace.publish(name, name)
    trace.drop("outbox", round_).done()
    trace.claim(name, f"{name}.1", round_, lease=0.5)
    trace.claim(name, f"{name}.2", round_)
    before = 4 * (round_ - 1)
    parent(trace, before + 1, {"c": False, "d": False}).done()
    parent(trace, before + 2, {"c": True, "d": False}).done()
    parent(trace, before + 3, {}).done()
    parent(trace, before + 4, {}).done()
    trace.fork(name, f"{name}.child")
    trace.version(name, 3).done()
    trace.drop("spawns", round_).done()


def stored_phase(trace: StoreTrace, name: str) -> None:
    trace.did("harness", "phase", {"phase": name}, {"phase": name})
    trace.version(f"between {len(trace.transactions)}", 1).done()


def test_each_exercise_of_the_store_is_counted_between_the_phase_load_and_the_next() -> None:
    trace = StoreTrace()
    for round_, name in ((1, "load"), (2, "drain"), (3, None)):
        everything_stored(trace, round_)
        if name is not None:
            stored_phase(trace, name)
    exercised = trace.judge().exercised
    assert exercised == dict.fromkeys(STORED_EXERCISES, 1)


def test_a_fork_that_is_left_early_is_not_joined() -> None:
    trace = StoreTrace()
    parent(trace, 1, {"c": False}).done()
    parent(trace, 2, {}).emit("c", "cancel")
    trace.done()
    assert trace.judge().exercised["forks_joined"] == 0


def test_a_run_counts_the_exercises_of_its_own_areas_alone() -> None:
    stored, picked = StoreTrace(), Trace()
    everything_stored(stored, 1)
    everything(picked)
    assert set(stored.judge().exercised) == set(STORED_EXERCISES)
    assert set(picked.judge().exercised) == set(EXERCISES)
