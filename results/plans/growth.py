"""How a statement's work grows with the table and with the batch (plans.md, "Growth").

The exponent of growth is the slope of log(work) over log(size), by least squares. Work is what the widest node handles,
and shared buffers. Against the table it may be `TABLE` at most, against the batch `BATCH`; times are not looked at.

Buffers are judged by what one more page can mean: a B-tree of ten times as many rows is up to one level deeper,
which is
a page for each descent and no growth of the statement. So for each factor of ten, `DESCENTS` pages a row are taken off
the growth of buffers: a row is found, and found again, and put into a few indexes.

A plan that reads a small table whole is not judged: the planner takes what is cheaper there, and
another plan where the table is large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log, log10
from typing import Final

from results.plans.folder import Capture, Captured
from results.plans.shapes import SMALL_ROWS
from results.plans.tree import Node, walk

TABLE: Final = 0.1
BATCH: Final = 1.1
# Statements whose work is a table's, by design, and why.
BY_DESIGN: Final[Mapping[str, str]] = {
    "limiter/sweep_buckets": "reads all buckets, and is the only one that does",
    "limiter/admit": "joins the batch's rows and the batch's keys in memory, by nested loops",
    "limiter/reconcile": "counts the executing rows, of which there are more in a larger table",
    "maintenance/reclaim": "looks at all expired leases, once a boot",
}
DESCENTS: Final = 3
# A table that never grows, such as the configuration's.
FEW_ROWS: Final = 20
# A table of so many batches is cheaper read whole than probed for one.
SMALL_BATCHES: Final = 200
FLOOR: Final = 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """One capture of a statement: rows of the profile, batch, and the work."""

    rows: int
    batch: int
    handled: float
    buffers: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Exponents of one statement in one mode. None where there are fewer than two sizes."""

    label: str
    mode: str
    table: float | None
    batch: float | None

    @property
    def broken(self) -> str:
        """In a sentence what grows too fast; empty where nothing does."""
        told = []
        if self.table is not None and self.table > TABLE:
            told.append(f"grows with the table: exponent {self.table:.2f}, at most {TABLE}")
        if self.batch is not None and self.batch > BATCH:
            told.append(f"grows faster than the batch: exponent {self.batch:.2f}, at most {BATCH}")
        return "; ".join(told)


def slope(points: Iterable[tuple[float, float]]) -> float | None:
    """The exponent of y over x, from logarithms. None for fewer than two values of x."""
    logs = [(log(x), log(max(y, 1.0))) for x, y in points]
    if len({x for x, _ in logs}) < 2:
        return None
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def growths(captures: Sequence[Capture]) -> list[Growth]:
    """Every statement's exponents: table sizes are compared at one batch, batches at one size."""
    points: dict[tuple[str, str], list[Point]] = {}
    for capture in captures:
        for captured in capture.statements.values():
            for mode, point in _points(captured, capture):
                points.setdefault((captured.label, mode), []).append(point)
    return [fitted(label, mode, each) for (label, mode), each in points.items()]


def fitted(label: str, mode: str, points: Sequence[Point]) -> Growth:
    """The worst exponent over what was measured."""
    by_batch = [[p for p in points if p.batch == batch] for batch in {p.batch for p in points}]
    by_rows = [[p for p in points if p.rows == rows] for rows in {p.rows for p in points}]
    tables = [
        exponent
        for group in by_batch
        for exponent in (
            slope((p.rows, max(p.handled, _floor(p))) for p in group),
            slope((p.rows, max(_less_levels(p, group), _floor(p))) for p in group),
        )
        if exponent is not None
    ]
    batches = [
        exponent
        for group in by_rows
        for exponent in (
            slope((p.batch, max(p.handled, _floor(p))) for p in group),
            slope((p.batch, max(p.buffers, _floor(p))) for p in group),
        )
        if exponent is not None
    ]
    return Growth(label, mode, max(tables, default=None), max(batches, default=None))


def _floor(point: Point) -> float:
    # Two rows or pages for each of the batch are no growth: in a small table there may not be a batch of everything.
    return max(FLOOR, 2.0 * point.batch)


def _less_levels(point: Point, group: Sequence[Point]) -> float:
    smallest = min(group, key=lambda each: each.rows)
    free = DESCENTS * log10(point.rows / smallest.rows) * max(smallest.handled, smallest.batch)
    return max(min(point.buffers, smallest.buffers), point.buffers - free)


def _points(captured: Captured, capture: Capture) -> Iterable[tuple[str, Point]]:
    rows, batch = capture.environment.profile.rows, capture.environment.profile.batch
    tables = capture.environment.tables
    for mode, explained in captured.plans.items():
        trees = (explained.plan, *(inner.plan for inner in explained.inner))
        whole = [
            node.relation for tree in trees for node in walk(tree) if node.kind == "Seq Scan" and node.loops
        ]
        small = max(SMALL_ROWS, SMALL_BATCHES * batch)
        if any(name in tables and FEW_ROWS < tables[name].rows <= small for name in whole):
            continue
        yield mode, Point(rows, batch, max(map(_widest, trees)), explained.plan.buffers)


def _widest(root: Node) -> float:
    return max(node.handled for node in walk(root))
