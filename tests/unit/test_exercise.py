"""What a load put the engine through is counted, while it lasted and not after."""

from __future__ import annotations

import io

from rich.console import Console

from invariants.exercise import EXERCISES
from invariants.render import print_exercises
from invariants.verdict import exercises
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
    ):
        trace.did("node", f, {}, result)
    trace.did("node", "count", {"event": "poke_dropped", "amount": 1}, None)


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
