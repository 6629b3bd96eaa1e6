"""Order and fairness in figures: how long jobs waited, by queue and priority, and how often one overtook another. Pure.

Figures and no verdicts: what is claimed when, many things decide that a history does not say, such as when a job is
eligible, and whether its key or its limit is free. `pick-order` judges each claim on the ledger.

1. A job waits from the answer to its insert to the start of the claim that took it first.
2. It `overtook` where a job of its queue that was more urgent, and inserted before its claim began, was first claimed
   by a claim that began after its own had been answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import polars as pl

from invariants.history.export import QUANTILES
from invariants.history.operations import Operation


class Waited(msgspec.Struct, frozen=True, gc=False):
    """A job from its insert to its first claim, in nanoseconds of the history's clock."""

    priority: int
    inserted_ns: int
    begin_ns: int
    end_ns: int


def waits(operations: Iterable[Operation]) -> dict[str, dict[str, Any]]:
    """By queue: {"claimed", "overtook", "wait_ms": {priority: {count, p50, p90, p99, max}}}; empty where nothing was
    claimed."""
    jobs: dict[int, tuple[dict[str, Any], int]] = {}
    taken: dict[str, dict[int, Waited]] = {}
    for o in operations:
        if o.type != "ok" or o.end_ns is None:
            continue
        if o.f == "insert" and o.result["id"] is not None:
            jobs[o.result["id"]] = (o.value["job"], o.end_ns)
        elif o.f == "insert_many":
            pairs = zip(o.value["jobs"], o.result["ids"], strict=True)
            jobs.update((row, (job, o.end_ns)) for job, row in pairs if row is not None)
        elif o.f == "claim":
            for row in o.result["ids"]:
                if row in jobs:
                    job, inserted = jobs[row]
                    waited = Waited(job["priority"], inserted, o.start_ns, o.end_ns)
                    taken.setdefault(job["queue"], {}).setdefault(row, waited)
    return {queue: _figures(list(taken[queue].values())) for queue in sorted(taken)}


def _figures(jobs: Sequence[Waited]) -> dict[str, Any]:
    by_priority: dict[int, list[int]] = {}
    for job in jobs:
        # A claim may begin before the insert is answered, and take what it made.
        by_priority.setdefault(job.priority, []).append(max(0, job.begin_ns - job.inserted_ns))
    return {
        "claimed": len(jobs),
        "overtook": overtakers(jobs),
        "wait_ms": {str(priority): _quantiles(by_priority[priority]) for priority in sorted(by_priority)},
    }


def _quantiles(waited_ns: Sequence[int]) -> dict[str, float]:
    waited = pl.Series(waited_ns, dtype=pl.Float64) / 1e6
    found = {
        name: round(float(waited.quantile(share, "linear") or 0.0), 3) for name, share in QUANTILES.items()
    }
    return {"count": len(waited_ns), **found, "max": round(max(waited_ns) / 1e6, 3)}


def overtakers(jobs: Sequence[Waited]) -> int:
    """How many of one queue's jobs overtook a more urgent one. n log n, times the number of priorities."""
    later = sorted(jobs, key=lambda job: -job.begin_ns)
    # Of the jobs whose claims began after the one that is looked at ended, the first insert of each priority.
    inserted: dict[int, int] = {}
    place = count = 0
    for job in sorted(jobs, key=lambda job: -job.end_ns):
        while place < len(later) and later[place].begin_ns > job.end_ns:
            other = later[place]
            inserted[other.priority] = min(other.inserted_ns, inserted.get(other.priority, other.inserted_ns))
            place += 1
        count += any(at < job.begin_ns for priority, at in inserted.items() if priority < job.priority)
    return count
