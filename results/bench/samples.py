"""What a bench measured, and the ratios that it is about: pure.

Rules:

1. A sample is one contender at one workload in one repetition, with one figure or more. Contenders take turns, so the
   samples of one repetition were measured within minutes of each other on one server: a ratio is taken within each
   repetition, and the median of those is told. Absolute figures are the machine's.
2. A sample counts only where its jobs were found done, each exactly once, in the write-ahead log of that very
   measurement. One that does not hold stays in the record, with the reason, and in no ratio.
3. Floors are what the same work costs on a bare table, without the promises that an engine makes. The best peer of a
   workload is the one with the best median.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, Final, Literal, TypeVar

import msgspec

from results.runs import VerdictWord

T = TypeVar("T")

SCHEMA: Final = 1
Kind = Literal["floor", "engine", "peer", "variant"]
# Figures of which less is better.
COSTS: Final = (
    "p50_ms", "p99_ms", "cpu_us", "statements", "round_trips", "wal_bytes", "row_versions",
    "buffers_hit", "buffers_read",
)  # fmt: skip


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """`figures`: by name with its unit at the end: `per_s`; `p50_ms`, `p99_ms`; `cpu_us`, processor time a job, of the
    workers and the server together; and, where costs are counted, for each job `statements`, `round_trips`,
    `wal_bytes`, `row_versions` that were written, pages found in shared memory and read into it
    (`buffers_hit`, `buffers_read`). `reason`: why it does not hold."""

    workload: str
    contender: str
    kind: Kind
    repetition: int
    figures: dict[str, float]
    verdict: VerdictWord
    reason: str | None = None


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """`bench.json`. `machine` and `postgres` are the setup behind the figures; `settings`: of each contender."""

    schema: int = SCHEMA
    machine: dict[str, Any]
    postgres: dict[str, Any]
    settings: dict[str, str]
    samples: tuple[Sample, ...]

    @property
    def verdict(self) -> VerdictWord:
        """The worst of all samples."""
        words = {sample.verdict for sample in self.samples}
        return "violated" if "violated" in words else "unknown" if "unknown" in words or not words else "held"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One contender at one workload, over all repetitions that held. `of_floor` and `of_peer`: times as good as each,
    None where there is none."""

    workload: str
    contender: str
    kind: Kind
    figure: str
    median: float
    least: float
    most: float
    repetitions: int
    of_floor: float | None
    of_peer: float | None
    verdict: VerdictWord


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """That `contender` is at least so many times as good as `against`: a contender's name, or `best peer`."""

    workload: str
    contender: str
    against: str
    at_least: float


class Judged(msgspec.Struct, frozen=True):
    """A goal and the ratio reached; None where it was not measured."""

    goal: Goal
    ratio: float | None

    @property
    def is_met(self) -> bool:
        return self.ratio is not None and self.ratio >= self.goal.at_least


BEST_PEER: Final = "best peer"
GOALS: Final = (
    *(
        goal
        for nodes in (1, 2)
        for goal in (
            Goal(workload=f"drain {nodes}", contender="engine", against=BEST_PEER, at_least=1.3),
            Goal(workload=f"drain {nodes}", contender="engine", against="raw 100", at_least=0.5),
            Goal(workload=f"drain {nodes}", contender="gate, 8 shards", against="engine", at_least=0.75),
            Goal(workload=f"drain {nodes}", contender="keys", against="engine", at_least=0.85),
        )
    ),
    *(
        Goal(workload=f"drain {nodes}", contender="nodes in a swarm", against="nodes alone", at_least=0.8)
        for nodes in (1, 2)
    ),
    Goal(workload="drain 1", contender="1,000,000 ended", against="100,000 ended", at_least=0.9),
    *(
        goal
        for clients in (1, 2, 4, 8)
        for goal in (
            Goal(workload=f"commits {clients}", contender="store", against="raw psycopg", at_least=0.8),
            Goal(workload=f"commits {clients}", contender="store", against="pgbench", at_least=0.4),
            Goal(
                workload=f"commits {clients}", contender="store, 100 at once", against="pgbench", at_least=1.0
            ),
        )
    ),
)


def standings(samples: Sequence[Sample]) -> list[Standing]:
    """Every contender's figures, in the order in which they were first measured."""
    held = [sample for sample in samples if sample.verdict == "held"]
    found = []
    for workload, contender in _unique((each.workload, each.contender) for each in samples):
        mine = [each for each in samples if (each.workload, each.contender) == (workload, contender)]
        good = [each for each in mine if each.verdict == "held"]
        for figure in _unique(name for each in mine for name in each.figures):
            values = [each.figures[figure] for each in good if figure in each.figures]
            if not values:
                continue
            floor, peer = (_best(held, workload, figure, kind) for kind in ("floor", "peer"))
            found.append(
                Standing(
                    workload=workload,
                    contender=contender,
                    kind=mine[0].kind,
                    figure=figure,
                    median=median(values),
                    least=min(values),
                    most=max(values),
                    repetitions=len(values),
                    of_floor=ratio(held, workload, contender, floor, figure),
                    of_peer=ratio(held, workload, contender, peer, figure),
                    verdict="held" if len(good) == len(mine) else "violated",
                )
            )
    return found


def judged(samples: Sequence[Sample], goals: Iterable[Goal] = GOALS) -> list[Judged]:
    """The goals whose contender was measured."""
    held = [sample for sample in samples if sample.verdict == "held"]
    measured = {(sample.workload, sample.contender) for sample in held}
    found = []
    for goal in goals:
        if (goal.workload, goal.contender) not in measured:
            continue
        peer = goal.against == BEST_PEER
        against = _best(held, goal.workload, "per_s", "peer") if peer else goal.against
        found.append(Judged(goal, ratio(held, goal.workload, goal.contender, against, "per_s")))
    return [each for each in found if each.ratio is not None]


def ratio(
    samples: Sequence[Sample], workload: str, contender: str, against: str | None, figure: str
) -> float | None:
    """How many times as good one is as the other: the median of the repetitions that have both."""
    mine, its = (
        {
            each.repetition: each.figures[figure]
            for each in samples
            if each.workload == workload and each.contender == name and figure in each.figures
        }
        for name in (contender, against)
    )
    pairs = [(mine[one], its[one]) for one in mine.keys() & its.keys()]
    if figure in COSTS:
        pairs = [(other, one) for one, other in pairs]
    times = [one / other for one, other in pairs if other > 0]
    return median(times) if times else None


def _best(samples: Sequence[Sample], workload: str, figure: str, kind: Kind) -> str | None:
    """Of the peers the best; of the floors the first, for the others are steps below it."""
    values: dict[str, list[float]] = {}
    for each in samples:
        if each.workload == workload and each.kind == kind and figure in each.figures:
            values.setdefault(each.contender, []).append(each.figures[figure])
    if not values:
        return None
    if kind == "floor":
        return next(iter(values))
    better = min if figure in COSTS else max
    return better(values, key=lambda name: median(values[name]))


def _unique(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))
