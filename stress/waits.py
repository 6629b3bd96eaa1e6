"""How long jobs wait, and what waiting costs, from the history. Pure.

`waits_ms` tells by kind of job (`Planned.kind`, else the queue) how long it took from the insert's answer, or from the
time that the job was not to start before, to the begin of its first step (`started`) and to the answer that its end is
committed (`ended`): {kind: {"started" | "ended": {"count", "p50", "p90", "p99", "max"}}}.

`idle_cost` is what nodes ask of the server while there is nothing to do: statements by their own histories, where an
operation that finds nothing is one statement; transactions by the server's own count, less what it counted before a
node was there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from invariants.history.export import quantiles
from invariants.history.operations import Operation
from invariants.witness import MARKS, committed

IDLE = "idle"
ENDS = ("done", "stop")


def waits_ms(operations: Sequence[Operation]) -> dict[str, dict[str, dict[str, float]]]:
    """See the module; a kind none of whose jobs started is left out."""
    due: dict[int, tuple[str, int]] = {}
    started: dict[int, int] = {}
    ended: dict[int, int] = {}
    for o in operations:
        if o.f == "step":
            started.setdefault(o.value["id"], o.start_ns)
        elif o.type != "ok" or o.end_ns is None:
            continue
        elif o.f in ("insert", "insert_many"):
            for row, job in _inserted(o):
                due[row] = (job.get("kind") or job["queue"], max(o.end_ns, _eligible_ns(o, job)))
        elif o.f == "flush":
            ended.update(dict.fromkeys(_ended(o), o.end_ns))
    found: dict[str, dict[str, list[int]]] = {}
    for what, when in (("started", started), ("ended", ended)):
        for row, at_ns in when.items():
            if row in due:
                kind, since_ns = due[row]
                found.setdefault(kind, {}).setdefault(what, []).append(max(0, at_ns - since_ns))
    return {
        kind: {what: quantiles(taken) for what, taken in sorted(by.items(), reverse=True)}
        for kind, by in sorted(found.items())
    }


def busiest_key(operations: Sequence[Operation], seconds: float) -> float | None:
    """Jobs ended per second of the concurrency key that ended most; None where no job of a key did."""
    keys = {
        row: job["concurrency_key"]
        for o in operations
        if o.f in ("insert", "insert_many") and o.type == "ok"
        for row, job in _inserted(o)
        if job["concurrency_key"] is not None
    }
    ended: Counter[str] = Counter()
    for o in operations:
        if o.f == "flush" and o.type == "ok":
            ended.update(keys[row] for row in _ended(o) if row in keys)
    return round(max(ended.values()) / seconds, 3) if ended and seconds > 0 else None


def idle_cost(operations: Sequence[Operation]) -> dict[str, float]:
    """Per node and second, over the time that the harness says the nodes were alone; empty where there was none."""
    idle = next((o for o in operations if o.f == IDLE and o.type == "ok" and o.end_ns is not None), None)
    if idle is None or idle.end_ns is None:
        return {}
    seconds, nodes = (idle.end_ns - idle.start_ns) / 1e9, idle.value["nodes"]
    statements = sum(
        o.process != idle.process
        and o.f not in (*MARKS, "step")
        and idle.start_ns <= o.start_ns < idle.end_ns
        for o in operations
    )
    return {
        "seconds": round(seconds, 3),
        "nodes": nodes,
        "statements_per_node": round(statements / seconds / nodes, 3),
        "transactions_per_node": round(max(0.0, idle.result["transactions"] / seconds / nodes), 3),
    }


def _ended(o: Operation) -> list[int]:
    """Jobs that a flush brought to their end."""
    kept = set(committed(o))
    return [row for row, claim, kind in o.value["outcomes"] if kind in ENDS and (row, claim) in kept]


def _inserted(o: Operation) -> list[tuple[int, dict[str, Any]]]:
    jobs = [o.value["job"]] if o.f == "insert" else o.value["jobs"]
    ids = [o.result["id"]] if o.f == "insert" else o.result["ids"]
    return [(row, job) for row, job in zip(ids, jobs, strict=True) if row is not None]


def _eligible_ns(o: Operation, job: dict[str, Any]) -> int:
    eligible_at = job.get("eligible_at")
    return 0 if eligible_at is None else eligible_at * 1_000_000 - o.wall_offset_ns
