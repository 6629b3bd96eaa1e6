"""A history as curves over time. Pure: frames in, curves out.

Seconds count from the beginning of the load. An operation belongs to the step of time in which it ended, one that
never ended to that in which it began. A step without operations has a rate of 0 and no latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import polars as pl

# What says something about the run, and is no work.
REMARKS: Final = ("count", "phase", "fault", "harness", "limits", "idle", "roll")
STEPS: Final = 80
SHORTEST_STEP_S: Final = 0.25
# As many curves in one chart as can be told apart.
CURVES: Final = 5


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
    """A history on the run's own clock: `operations` with `f`, `type`, `at_s` and `took_ms`."""

    operations: pl.DataFrame
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
    return Timeline(timed, bands, end_s if drained is None else (drained - zero) / 1e9, end_s)


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
