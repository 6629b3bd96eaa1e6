"""How a statement's work grows with the table and with the batch (plans.md, "Growth").

The exponent of growth is the slope of log(work) over log(size), by least squares. Work is what the widest node handles,
and shared buffers. Against the table it may be `TABLE` at most, against the batch `BATCH`; times are not looked at.

Buffers are judged by what a larger table may add to a plan that stays what it is, which is no growth of the statement:

- a B-tree of ten times as many rows is up to one level deeper. So for each factor of ten, a page for each descent is
  taken off: for each loop of an index scan, for each value of an array that it is asked for, for each entry of an index
  that a row is put into, and for the look at an arbiter. Half of the buffers is the most, for a descent has two pages
  at least; and it is what is taken off where functions hide their plans.
- rows that lay on one page come to lie on several. So a page is taken off for each row that an index scan fetches, and
  `SHARED` where it is asked for an array, whose values share their descents since 17.

A plan that reads a small table whole is not judged: the planner takes what is cheaper there, and
another plan where the table is large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, log10
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
INDEX_SCANS: Final = frozenset(("Index Scan", "Index Only Scan", "Bitmap Index Scan"))
# A leaf, the page above it and the row's own.
SHARED: Final = 3
# A table that never grows, such as the configuration's.
FEW_ROWS: Final = 20
# A table of so many batches is cheaper read whole than probed for one.
SMALL_BATCHES: Final = 200
FLOOR: Final = 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """One capture of a statement: rows of the profile, batch, and the work. `descents`: of B-trees, infinite where they
    are not known. `apart`: pages that rows take more where no two lie together."""

    rows: int
    batch: int
    handled: float
    buffers: float
    descents: float = inf
    apart: float = 0


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
    if point is smallest:
        return point.buffers
    deeper = log10(point.rows / smallest.rows) * min(smallest.descents, smallest.buffers / 2)
    free = deeper + smallest.apart
    return max(min(point.buffers, smallest.buffers), point.buffers - free)


def _points(captured: Captured, capture: Capture) -> Iterable[tuple[str, Point]]:
    rows, batch = capture.environment.profile.rows, capture.environment.profile.batch
    tables = capture.environment.tables
    of_table = Counter(index.table for index in capture.environment.indexes.values())
    for mode, explained in captured.plans.items():
        trees = (explained.plan, *(inner.plan for inner in explained.inner))
        whole = [
            node.relation for tree in trees for node in walk(tree) if node.kind == "Seq Scan" and node.loops
        ]
        small = max(SMALL_ROWS, SMALL_BATCHES * batch)
        if any(name in tables and FEW_ROWS < tables[name].rows <= small for name in whole):
            continue
        trees_inside = [(each.calls, each.plan) for each in explained.inner]
        descents = apart = 0.0
        for calls, tree in ((1, explained.plan), *trees_inside):
            for node in walk(tree):
                descents += calls * _descents(node, of_table)
                apart += calls * _apart(node)
        if captured.functions.startswith("not captured"):
            descents = inf
        widest = max(node.handled for tree in trees for node in walk(tree))
        yield mode, Point(rows, batch, widest, explained.plan.buffers, descents, apart)


def _descents(node: Node, of_table: Mapping[str, int]) -> float:
    if node.kind in INDEX_SCANS:
        return node.loops * max(1.0, node.rows) if _asks_for_array(node) else node.loops
    if node.kind in ("Insert", "Update"):
        fed = sum(child.rows * child.loops for child in node.children if not child.name)
        return fed * (of_table.get(node.relation, 0) + ("Conflict Arbiter Indexes" in node.conditions))
    return 0.0


def _apart(node: Node) -> float:
    if node.kind not in INDEX_SCANS:
        return 0.0
    return node.rows * node.loops * (SHARED if _asks_for_array(node) else 1)


def _asks_for_array(node: Node) -> bool:
    return "= ANY" in node.conditions.get("Index Cond", "")
