"""A history as curves over time. Pure: frames in, curves out.

Seconds count from the beginning of the load. An operation belongs to the step of time in which it ended, one that
never ended to that in which it began. A step without operations has a rate of 0 and no latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import polars as pl

# What says something about the run, and is no work.
REMARKS: Final = ("count", "phase", "fault", "harness", "limits", "idle", "roll")
STEPS: Final = 80
SHORTEST_STEP_S: Final = 0.25
# As many curves in one chart as can be told apart.
CURVES: Final = 5
# Between two samples that are so far apart nobody looked: the server was away.
UNSEEN_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Curve:
    """`ys` has None where there is nothing to show."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """A fault from its beginning to its heal."""

    name: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A history on the run's own clock, which is at `zero_ns` of the history's when the load begins: `operations` with
    `f`, `type`, `at_s` and `took_ms`; `tallies`, what operations say of themselves, with `name`, `at_s` and `amount`.
    """

    operations: pl.DataFrame
    tallies: pl.DataFrame
    zero_ns: int
    bands: tuple[Band, ...]
    load_s: float
    end_s: float

    @property
    def step_s(self) -> float:
        """The length of a step."""
        return max(SHORTEST_STEP_S, self.end_s / STEPS)


def timeline(history: pl.DataFrame) -> Timeline:
    """Raises nothing: a history without a load begins with its first operation."""
    phases = {
        _field(value, "phase"): start
        for value, start in history.filter(pl.col("f") == "phase").select("value", "start_ns").iter_rows()
    }
    first = history["start_ns"].min()
    zero = int(phases.get("load", first if isinstance(first, int) else 0))
    ended = history.select(pl.max_horizontal(pl.col("start_ns"), pl.col("end_ns")).max()).item()
    end_s = 0.0 if ended is None else (ended - zero) / 1e9
    timed = history.filter(~pl.col("f").is_in(REMARKS)).select(
        "f",
        "type",
        at_s=(pl.coalesce("end_ns", "start_ns") - zero) / 1e9,
        took_ms=(pl.col("end_ns") - pl.col("start_ns")) / 1e6,
    )
    bands = tuple(
        Band(_field(value, "fault"), (start - zero) / 1e9, end_s if end is None else (end - zero) / 1e9)
        for value, start, end in history.filter(pl.col("f") == "fault")
        .select("value", "start_ns", "end_ns")
        .sort("start_ns")
        .iter_rows()
    )
    drained = phases.get("drain")
    load_s = end_s if drained is None else (drained - zero) / 1e9
    return Timeline(timed, _tallies(history, zero), zero, bands, load_s, end_s)


def rates(line: Timeline) -> tuple[Curve, ...]:
    """Operations that ended well, a second, of the names that have most."""
    well = line.operations.filter((pl.col("type") == "ok") & (pl.col("at_s") >= 0))
    return tuple(_rate(line, name, well.filter(pl.col("f") == name)) for name in _busiest(well))


def troubles(line: Timeline) -> tuple[Curve, ...]:
    """Operations a second that failed, and those whose outcome nobody knows."""
    bad = line.operations.filter(pl.col("at_s") >= 0)
    return tuple(
        _rate(line, name, bad.filter(pl.col("type") == type_))
        for name, type_ in (("failed", "fail"), ("unknown", "info"))
        if not bad.filter(pl.col("type") == type_).is_empty()
    )


def claims(line: Timeline) -> tuple[Curve, ...]:
    """Claims a second, the jobs or messages that they took, and those that found nothing."""
    return _tallied(line, ("claims", "taken", "found nothing"))


def stale(line: Timeline) -> tuple[Curve, ...]:
    """What came too late, a second: outcomes and acknowledgements that the fence refused, and commits that lost against
    another version."""
    return _tallied(line, ("outcomes refused", "acknowledgements refused", "commits in conflict"))


def contention(line: Timeline) -> tuple[Curve, ...]:
    """Races for a key, a counter or a row that were lost and tried again, a second, as the engine
    counts them."""
    return _tallied(line, ("contended",))


def gauge(line: Timeline, gauges: pl.DataFrame, prefix: str) -> tuple[Curve, ...]:
    """The samples whose names begin so, by the rest of their names: those that were ever more than nought, and of
    these the largest."""
    found = gauges.filter(pl.col("name").str.starts_with(prefix) & (pl.col("at_ns") >= line.zero_ns))
    most = found.group_by("name").agg(pl.col("value").max()).filter(pl.col("value") > 0)
    names = most.sort(["value", "name"], descending=[True, False])["name"].head(CURVES).to_list()
    curves = []
    for name in sorted(names):
        mine = found.filter(pl.col("name") == name).sort("at_ns")
        xs: list[float] = []
        ys: list[float | None] = []
        for at_ns, value in mine.select("at_ns", "value").iter_rows():
            at_s = (at_ns - line.zero_ns) / 1e9
            if xs and at_s - xs[-1] > UNSEEN_S:
                xs.append(at_s)
                ys.append(None)
            xs.append(at_s)
            ys.append(float(value))
        curves.append(Curve(name.removeprefix(prefix).strip() or name, tuple(xs), tuple(ys)))
    return tuple(curves)


def latencies(line: Timeline, quantile: float) -> tuple[Curve, ...]:
    """That quantile of what operations took, in ms, of the names that have most."""
    well = line.operations.filter((pl.col("type") == "ok") & (pl.col("at_s") >= 0))
    curves = []
    for name in _busiest(well):
        found = dict(
            well.filter(pl.col("f") == name)
            .group_by(step=_step(line))
            .agg(pl.col("took_ms").quantile(quantile, "linear"))
            .iter_rows()
        )
        curves.append(_curve(line, name, [found.get(step) for step in range(_steps(line))]))
    return tuple(curves)


def depths(frame: pl.DataFrame) -> tuple[Curve, ...]:
    """Jobs by status and rows by table: those that ever were, but what has ended only grows and says nothing."""
    names = [name for name in frame.columns if name not in ("at_s", "done", "failed")]
    shown = [name for name in names if _largest(frame, name) > 0]
    shown = sorted(shown, key=lambda name: -_largest(frame, name))[:CURVES]
    xs = tuple(frame["at_s"].to_list())
    return tuple(Curve(name, xs, tuple(float(y) for y in frame[name].to_list())) for name in sorted(shown))


def _tallies(history: pl.DataFrame, zero: int) -> pl.DataFrame:
    """What the operations of a history say of themselves: `_told`, each when it was answered."""
    rows = [
        (name, (at_ns - zero) / 1e9, amount)
        for f, type_, value, result, at_ns in history.filter(pl.col("f").is_in(_TALLIED))
        .select("f", "type", "value", "result", pl.coalesce("end_ns", "start_ns"))
        .iter_rows()
        for name, amount in _told(f, type_, msgspec.json.decode(value), msgspec.json.decode(result))
        if amount
    ]
    return pl.DataFrame(
        rows, schema={"name": pl.String, "at_s": pl.Float64, "amount": pl.Int64}, orient="row"
    )


_TALLIED: Final = (
    "claim", "flush", "count", "store.commit", "transport.claim", "transport.ack",
)  # fmt: skip


def _told(f: str, type_: str, value: Any, result: Any) -> list[tuple[str, int]]:
    """One operation, by the contract of `invariants/witness.py`."""
    if f == "count":
        return [(value["event"], value["amount"])] if value["event"] == "contended" else []
    if f == "store.commit" and type_ == "fail":
        return [("commits in conflict", int((result or {}).get("error") == "StoreConflict"))]
    if type_ != "ok":
        return []
    if f in ("claim", "transport.claim"):
        ids = result.get("ids", []) if isinstance(result, dict) and f == "claim" else result
        found = ids if isinstance(ids, list) else [ids]
        taken = sum(each is not None for each in found)
        return [("claims", 1), ("taken", taken), ("found nothing", int(not taken))]
    if f == "transport.ack":
        answers = result if isinstance(result, list) else [result]
        return [("acknowledgements refused", sum(not answer for answer in answers))]
    if f == "flush":
        return [
            (
                "outcomes refused",
                max(0, len(value.get("outcomes", ())) - len((result or {}).get("committed", ()))),
            )
        ]
    return []


def _tallied(line: Timeline, names: Sequence[str]) -> tuple[Curve, ...]:
    """The tallies of these names, a second; those that were ever more than nought."""
    curves = []
    for name in names:
        mine = line.tallies.filter((pl.col("name") == name) & (pl.col("at_s") >= 0))
        if mine.is_empty():
            continue
        sums = dict(mine.group_by(step=_step(line)).agg(pl.col("amount").sum()).iter_rows())
        curves.append(_curve(line, name, [sums.get(step, 0) / line.step_s for step in range(_steps(line))]))
    return tuple(curves)


def _largest(frame: pl.DataFrame, name: str) -> int:
    return int(frame[name].max() or 0)  # type: ignore[arg-type]


def _busiest(operations: pl.DataFrame) -> Sequence[str]:
    counted = operations.group_by("f").len().sort(["len", "f"], descending=[True, False])
    return sorted(counted["f"].head(CURVES).to_list())


def _rate(line: Timeline, name: str, operations: pl.DataFrame) -> Curve:
    counts = dict(operations.group_by(step=_step(line)).len().iter_rows())
    return _curve(line, name, [counts.get(step, 0) / line.step_s for step in range(_steps(line))])


def _curve(line: Timeline, name: str, ys: Sequence[float | None]) -> Curve:
    return Curve(name, tuple((step + 0.5) * line.step_s for step in range(len(ys))), tuple(ys))


def _step(line: Timeline) -> pl.Expr:
    return (pl.col("at_s") / line.step_s).floor().cast(pl.Int64)


def _steps(line: Timeline) -> int:
    return max(1, math.ceil(line.end_s / line.step_s))


def _field(value: str, name: str) -> str:
    return str(msgspec.json.decode(value)[name])
