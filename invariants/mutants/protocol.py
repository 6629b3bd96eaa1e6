"""Pickers that take one step of their protocol differently: mutants that no edit of a statement can express."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import engine.node
from engine import operation
from engine.machine import Step
from engine.operation import Begin, Call, Operation, Row, call
from engine.picker import Commit, Ended, Hold, Job, Picker
from engine.policy import QueuePolicy
from engine.scheduler import Scheduler
from engine.statements import Catalogue, Statement
from engine.values import UnstorableValue
from invariants.mutants.mutant import Mutant
from invariants.mutants.node import SleepsUntilPoked

_COLUMNS = (
    "fsm", "fsm_version", "step", "state", "queue", "priority", "eligible_at", "concurrency_key", "rate_limit",
    "weight", "correlation_key", "correlation_scope",
)  # fmt: skip
_TYPES = (
    "text", "integer", "text", "jsonb", "text", "smallint", "timestamptz", "text", "text", "double precision", "text",
    "text::durable_status[]",
)  # fmt: skip


class RidersOfTheStale(Picker):
    """Riders act on every outcome of the batch, also on those whose row somebody else holds by now."""

    def _riders(
        self, commits: Sequence[Commit], rows: Sequence[Row]
    ) -> tuple[list[Call], list[tuple[int, int]]]:
        won = {(row[0], row[1]) for row in rows}
        stale = [(c.id, c.claim, None, None, None, None) for c in commits if (c.id, c.claim) not in won]
        return super()._riders(commits, [*rows, *stale])


class ChildrenAfterUpdate(Picker):
    """A flush changes its rows first and inserts their children then, as documented."""

    def flush(self, commits: Sequence[Commit]) -> Operation[Ended]:
        """As the picker's, in the other order; it counts the children as if all of them landed."""
        if not any(commit.children for commit in commits):
            return (yield from super().flush(commits))
        counts = {commit.id: len(commit.children) for commit in commits}
        _, rows = yield (Begin(), self._flush_call(commits, counts))
        children = [(*job.columns(), commit.id) for commit in commits for job in commit.children]
        columns = zip(*children, strict=True)
        yield call(self._sql["picker/flush_children"], *(list(column) for column in columns))
        calls, _ = self._riders(commits, rows)
        yield (*calls, operation.Commit())
        return Ended(tuple(Hold(row[0], row[1]) for row in rows), int(rows[0][2]) if rows else None)


class PlaceholderPerValue(Picker):
    """A batch is inserted with one parameter for each of its values."""

    def insert_many(self, jobs: Sequence[Job]) -> Operation[list[int | None]]:
        """As the picker's; the answer's order is the batch's, for this test has no duplicates."""
        if not jobs:
            return []
        values: list[Any] = []
        tuples: list[str] = []
        for job in jobs:
            first = len(values)
            values.extend(job.columns())
            names = (f"${first + n + 1}::{kind}" for n, kind in enumerate(_TYPES))
            tuples.append("(" + ", ".join(_defaulted(names)) + ")")
        text = (
            "-- A batch with a parameter for each value.\n"
            f"INSERT INTO gen_durable ({', '.join(_COLUMNS)}) VALUES {', '.join(tuples)}\n"
            "ON CONFLICT (correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING RETURNING id"
        )
        rows = yield call(Statement.parse("picker/insert_values", text), *values)
        return [row[0] for row in rows]


def _defaulted(names: Iterable[str]) -> list[str]:
    return [f"coalesce({name}, now())" if name.endswith("timestamptz") else name for name in names]


def picker_of(mutant: Mutant | None) -> Picker:
    """The picker over the sound catalogue, or the mutant's over its own."""
    if mutant is None:
        return Picker()
    catalogue = mutant.apply(Catalogue.load())
    if "riders-of-the-stale" in mutant.protocol:
        return RidersOfTheStale(catalogue)
    if "children-after-update" in mutant.protocol:
        return ChildrenAfterUpdate(catalogue)
    if "placeholder-per-value" in mutant.protocol:
        return PlaceholderPerValue(catalogue)
    return Picker(catalogue)


class CrashesOnUnstorable(Scheduler):
    """An outcome that cannot be stored ends its worker: the lease runs out, the row is reaped, and all begins anew."""

    def _answer_error(self, step: Step, hold: Hold, turn: int, error: Exception) -> Commit:
        if isinstance(error, UnstorableValue):
            raise asyncio.CancelledError
        return super()._answer_error(step, hold, turn, error)


@contextmanager
def nodes_of(mutant: Mutant | None) -> Iterator[None]:
    """While the block runs, nodes of this process take the mutant's steps."""
    steps = frozenset() if mutant is None else mutant.protocol
    scheduler, threshold = vars(engine.node)["Scheduler"], QueuePolicy.demand_threshold
    if "serialise-outside-guard" in steps:
        setattr(engine.node, "Scheduler", CrashesOnUnstorable)  # noqa: B010  # a constant to the type checker
    if "sleep-until-poked" in steps:
        setattr(engine.node, "Scheduler", SleepsUntilPoked)  # noqa: B010
    if "min-demand-unclamped" in steps:
        setattr(QueuePolicy, "demand_threshold", property(lambda queue: queue.min_demand))  # noqa: B010
    try:
        yield
    finally:
        setattr(engine.node, "Scheduler", scheduler)  # noqa: B010
        setattr(QueuePolicy, "demand_threshold", threshold)  # noqa: B010
