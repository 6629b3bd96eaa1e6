"""What became of faults in the eyes of those who suffered them, counted from the history. Pure.

claims reaped              claims taken back after their lease
outcomes stale             outcomes that came too late, or twice
flushes unknown            flushes of which nobody heard what became
outcomes resolved          of their outcomes, those that were sent again and answered: committed, or stale
outcomes left to the reaper    those that were not: their node was killed, or gave up
client calls unknown       calls of clients, likewise
reconnects                 times that a node found its session gone, or none to be had
refused                    outcomes that the server would not take, which became failures of their steps
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from invariants.history.operations import Operation
from invariants.witness import is_unknown

CALLS = ("insert", "insert_many", "signal")
COUNTED = {
    "stale": "outcomes stale", "reconnect": "reconnects", "poke_reconnect": "reconnects", "refused": "refused",
}  # fmt: skip


def effects(operations: Iterable[Operation]) -> dict[str, int]:
    """See the module; what did not happen is left out."""
    counts: Counter[str] = Counter()
    open_outcomes: dict[tuple[int, str], int] = {}
    for o in operations:
        if o.f == "count":
            if (name := COUNTED.get(o.value["event"])) is not None:
                counts[name] += o.value["amount"]
        elif o.f == "reap" and o.type == "ok":
            counts["claims reaped"] += len(o.result["holds"])
        elif o.f == "flush":
            holds = [(row, claim) for row, claim, _ in o.value["outcomes"]]
            if is_unknown(o):
                counts["flushes unknown"] += 1
                open_outcomes.update(
                    (hold, o.end_ns or o.start_ns) for hold in holds if hold not in open_outcomes
                )
            elif o.type == "ok":
                counts["outcomes resolved"] += sum(
                    open_outcomes.pop(hold, None) is not None for hold in holds
                )
        elif o.f in CALLS and is_unknown(o):
            counts["client calls unknown"] += 1
    counts["outcomes left to the reaper"] = len(open_outcomes)
    return {name: count for name, count in sorted(counts.items()) if count}


class Back(msgspec.Struct):
    """Of one kind of fault: how long after each throughput was back, in milliseconds and in order, what lease and
    sweeps imply for the same, and after how many it was not seen."""

    times_ms: list[float] = msgspec.field(default_factory=list)
    bounds_ms: list[float] = msgspec.field(default_factory=list)
    unseen: int = 0


def recovered(faults: Iterable[Mapping[str, Any]]) -> dict[str, Back]:
    """By kind, from the `faults` of a verdict."""
    found: dict[str, Back] = {}
    for fault in faults:
        back, recovery = found.setdefault(fault["fault"], Back()), fault["recovery"]
        if recovery["throughput_ms"] is None:
            back.unseen += 1
        else:
            back.times_ms = sorted([*back.times_ms, recovery["throughput_ms"]])
            if (bound_ms := recovery.get("throughput_bound_ms")) is not None:
                back.bounds_ms = sorted([*back.bounds_ms, bound_ms])
    return found


def told_orphans(faults: Iterable[Mapping[str, Any]], bounds: Mapping[str, float]) -> str | None:
    """What became of the rows that killed and frozen nodes had held, in a sentence; None where there were none."""
    each = [fault["recovery"] for fault in faults if fault["recovery"]["orphans"]]
    if not each:
        return None
    parts = [f"orphans: {sum(one['orphans'] for one in each):,}"]
    for name, words in (("taken_back_ms", "taken back"), ("run_again_ms", "run again")):
        times = [one[name] for one in each if one[name] is not None]
        said = f"within {max(times):,.0f} ms" if times else "never"
        late = sum(one[name.replace("_ms", "_late")] for one in each)
        parts.append(f"{words} {said} (lease and sweeps imply {bounds[name]:,.0f} ms; {late:,} later)")
    waiting = sum(one["still_waiting"] for one in each)
    return ", ".join(parts) + (f", {waiting:,} not seen to run again" if waiting else "")


def by_fault(faults: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, Counter[str]]]:
    """How often each fault fired, and what it did in all; from the `faults` of a verdict."""
    found: dict[str, tuple[int, Counter[str]]] = {}
    for fault in faults:
        fired, did = found.get(fault["fault"], (0, Counter()))
        found[fault["fault"]] = (fired + 1, did + Counter(fault.get("did", {})))
    return found
