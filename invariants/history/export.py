"""A merged history in other people's formats, and the figures that come from it.

Parquet is the columnar file: one compressed file that polars, pandas, DuckDB and R read without this project,
with typed columns and statistics that let a reader skip. Arrow IPC would load faster and is several times
larger; a run's history is written once and read by people later.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from invariants.depth import Depth
from invariants.history.operations import Operation
from invariants.witness import MARKS, ended

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def to_frame(operations: Sequence[Operation]) -> pl.DataFrame:
    """One row per operation. `value` and `result` are JSON text, for they differ from operation to operation."""
    encode = msgspec.json.encode
    return pl.DataFrame(
        {
            "process": [o.process for o in operations],
            "index": [o.index for o in operations],
            "f": [o.f for o in operations],
            "type": [o.type for o in operations],
            "value": [encode(o.value).decode() for o in operations],
            "result": [encode(o.result).decode() for o in operations],
            "start_ns": [o.start_ns for o in operations],
            "end_ns": [o.end_ns for o in operations],
        },
        schema={
            "process": pl.String, "index": pl.Int64, "f": pl.String, "type": pl.String,
            "value": pl.String, "result": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64,
        },
    )  # fmt: skip


def write_parquet(operations: Sequence[Operation], path: Path) -> None:
    """The whole history as one file."""
    to_frame(operations).write_parquet(path, compression="zstd")


def write_depths(depths: Sequence[Depth], operations: Sequence[Operation], path: Path) -> None:
    """How much lay where, as columns: `at_s`, seconds since the load began (since the first operation where there was
    no load), and a column for each status and table."""
    began = next((o for o in operations if o.f == "phase" and o.value["phase"] == "load"), None)
    began = began or min(operations, key=lambda o: o.start_ns, default=None)
    zero_ns = 0 if began is None else began.start_ns + began.wall_offset_ns
    names = sorted({name for depth in depths for name in depth.of})
    columns: dict[str, list[float] | list[int]] = {
        "at_s": [(depth.at_us * 1000 - zero_ns) / 1e9 for depth in depths]
    }
    columns |= {name: [depth.of.get(name, 0) for depth in depths] for name in names}
    schema = {"at_s": pl.Float64, **dict.fromkeys(names, pl.Int64)}
    pl.DataFrame(columns, schema=schema).write_parquet(path, compression="zstd")


def latencies_ms(operations: Sequence[Operation]) -> dict[str, dict[str, float]]:
    """Per operation that completed ok: count, p50, p90, p99 and max in milliseconds, to the nanosecond."""
    by_name: dict[str, list[int]] = {}
    for o in operations:
        if o.type == "ok" and (took_ns := o.took_ns) is not None and o.f not in MARKS:
            by_name.setdefault(o.f, []).append(took_ns)
    answer: dict[str, dict[str, float]] = {}
    for name in sorted(by_name):
        answer[name] = quantiles(by_name[name])
    return answer


def quantiles(taken_ns: Sequence[int]) -> dict[str, float]:
    """Of some times in nanoseconds, at least one: count, p50, p90, p99 and max in milliseconds."""
    taken = pl.Series(taken_ns, dtype=pl.Float64) / 1e6
    found = {q: round(float(taken.quantile(p, "linear") or 0.0), 6) for q, p in QUANTILES.items()}
    return {"count": len(taken), **found, "max": round(max(taken_ns) / 1e6, 6)}


def throughput(operations: Sequence[Operation]) -> dict[str, float]:
    """Operations that completed ok per second of the history's length, by name; jobs inserted and ended too, or of a
    history of the store, commits, messages and events delivered.

    `jobs_inserted` counts ids answered, `jobs_ended` outcomes `done` and `stop` acknowledged. `commits` counts those
    that made a version, `messages` those acknowledged, `events_delivered` rows of the outbox that relays handed over.
    """
    timed = [o for o in operations if o.end_ns is not None and o.f not in MARKS]
    if not timed:
        return {}
    seconds = (max(o.end_ns or 0 for o in timed) - min(o.start_ns for o in timed)) / 1e9
    of_the_store = any("." in o.f for o in timed)
    measures = _STORE_MEASURES if of_the_store else _PICKER_MEASURES
    counts: dict[str, int] = dict.fromkeys(measures, 0)
    for o in timed:
        if o.type == "ok":
            counts[o.f] = counts.get(o.f, 0) + 1
            for name, measure in measures.items():
                counts[name] += measure(o)
    return {name: round(count / seconds, 3) if seconds else 0.0 for name, count in sorted(counts.items())}


def write_elle_json(operations: Sequence[Operation], path: Path) -> None:
    """The history as `elle-cli` reads it: a JSON array of maps with index, type, process, f, value and time.

    There a process is an integer with one operation at a time, and one whose operation ended `info` never
    comes back. A process here may have many open, so each is laid out over as many lanes as it needs.
    """
    rows: list[dict[str, Any]] = []
    lanes: dict[str, list[tuple[int, int]]] = {}
    count = 0
    for o in sorted(operations, key=lambda o: o.start_ns):
        if o.f == "count":
            continue
        free = lanes.setdefault(o.process, [])
        if free and free[0][0] < o.start_ns:
            lane = heapq.heappop(free)[1]
        else:
            lane, count = count, count + 1
        shared = {"process": lane, "f": o.f, "node": o.process}
        rows.append({"type": "invoke", "value": o.value, "time": o.start_ns, **shared})
        if o.end_ns is not None:
            value = o.value if o.result is None else o.result
            rows.append({"type": o.type, "value": value, "time": o.end_ns, **shared})
            if o.type != "info":
                heapq.heappush(free, (o.end_ns, lane))
    rows.sort(key=lambda row: (row["time"], row["type"] == "invoke"))
    with path.open("w", encoding="utf-8") as file:
        file.write("[\n")
        file.write(",\n".join(json.dumps({"index": index, **row}) for index, row in enumerate(rows)))
        file.write("\n]\n")


def _inserted(o: Operation) -> int:
    if o.f == "insert":
        return int(o.result["id"] is not None)
    return sum(i is not None for i in o.result["ids"]) if o.f == "insert_many" else 0


def _ended(o: Operation) -> int:
    if o.f != "flush":
        return 0
    committed = set(ended(o))
    return sum(
        kind in ("done", "stop") and (row, claim) in committed for row, claim, kind in o.value["outcomes"]
    )


def _committed(o: Operation) -> int:
    return int(o.f == "store.commit")


def _acknowledged(o: Operation) -> int:
    if o.f != "transport.ack":
        return 0
    return sum(map(bool, o.result)) if isinstance(o.result, list) else int(bool(o.result))


def _delivered(o: Operation) -> int:
    if o.f != "relay.deliver":
        return 0
    return len(o.value["seqs"] if "seqs" in o.value else o.result["seqs"])


_PICKER_MEASURES: Final = {"jobs_inserted": _inserted, "jobs_ended": _ended}
_STORE_MEASURES: Final = {
    "commits": _committed,
    "messages": _acknowledged,
    "events_delivered": _delivered,
}
