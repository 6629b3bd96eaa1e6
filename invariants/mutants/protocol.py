"""Pickers, limiters and schedulers that take one step of their protocol differently: mutants that no edit of a
statement can express."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg

import engine.node
from engine import operation
from engine.limiter import Limit, PostgresLimiter
from engine.limits import PROVISIONAL_SHARD, Admission
from engine.machine import Step
from engine.maintenance import Maintenance
from engine.operation import Begin, Call, Operation, Row, T, call
from engine.picker import Claimed, Commit, Ended, Hold, Job, Picker
from engine.policy import QueuePolicy
from engine.scheduler import Scheduler
from engine.statements import Catalogue, Statement
from engine.values import UnstorableValue
from invariants.mutants.mutant import Mutant, ProtocolStep
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


class AdmitsTheToldKey(PostgresLimiter):
    """An admission draws on the key that it is told, not on the one that its row has: the commit that brings it is
    yet to come."""

    def admit(self, rows: Sequence[Claimed]) -> Operation[Admission]:
        """As the limiter's, the keys sent along."""
        keys = {row.id: row.concurrency_key for row in rows}
        return _told(super().admit(rows), keys)


def _told(admission: Operation[T], keys: dict[int, str | None]) -> Operation[T]:
    """The operation, with one argument more for each of its statements: a key for each id of the first."""
    try:
        pending = next(admission)
        while True:
            assert isinstance(pending, Call)
            ids = pending.arguments[0]
            assert isinstance(ids, list)
            try:
                answer = yield call(pending.statement, *pending.arguments, [keys[row] for row in ids])
            except psycopg.Error as error:
                pending = admission.throw(error)
            else:
                pending = admission.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def limiter_of(mutant: Mutant | None, limits: Sequence[Limit]) -> PostgresLimiter:
    """The limiter over the sound catalogue, or the mutant's over its own."""
    if mutant is None:
        return PostgresLimiter(limits)
    kind = AdmitsTheToldKey if "admits-before-it-continues" in mutant.protocol else PostgresLimiter
    return kind(limits, mutant.apply(Catalogue.load()))


def maintenance_of(mutant: Mutant | None) -> Maintenance:
    """The sweeps over the sound catalogue, or over the mutant's."""
    return Maintenance(None if mutant is None else mutant.apply(Catalogue.load()))


class InlineOntoAnyKey(Scheduler):
    """A continuation is taken onto whatever key it names. Which of them are gates the flush looks up."""

    def _inline(self, commit: Commit, step: Step, row: Claimed) -> Commit:
        if commit.kind != "next" or commit.step is None or self._stopping:
            return commit
        if not self._registry.goes_on_inline(step, commit.step):
            return commit
        rekeyed = commit.sets_key and commit.concurrency_key != row.concurrency_key
        return msgspec.structs.replace(
            commit,
            kind="continue",
            sets_key=rekeyed,
            concurrency_key=commit.concurrency_key if rekeyed else None,
            gated=rekeyed and commit.concurrency_key is not None,
            lease_ms=self._policy.lease_ttl_ms,
        )


class AdmitsBeforeItContinues(Scheduler):
    """A continuation onto a gate's key asks the limiter first and commits then."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._answers: dict[Hold, Admission | None] = {}

    async def _execute(self, lease: Any) -> Commit:
        row, commit = lease.claimed, await super()._execute(lease)
        if commit.kind == "continue" and commit.gated:
            self._answers[lease.hold] = await super()._ask_limiter([as_continued(row, commit)])
        return commit

    async def _ask_limiter(self, rows: list[Claimed]) -> Admission | None:
        hold = Hold(rows[0].id, rows[0].claim)
        if hold in self._answers:
            return self._answers.pop(hold)
        return await super()._ask_limiter(rows)

    def _forget(self, lease: Any) -> None:
        self._answers.pop(lease.hold, None)
        super()._forget(lease)


def as_continued(row: Claimed, commit: Commit) -> Claimed:
    """The row as an admission sees it once a continuation onto a gate's key has committed."""
    return msgspec.structs.replace(
        row,
        concurrency_key=commit.concurrency_key,
        concurrency_shard=PROVISIONAL_SHARD,
        rate_limit=commit.rate_limit,
        weight=commit.weight,
    )


class CrashesOnUnstorable(Scheduler):
    """An outcome that cannot be stored ends its worker: the lease runs out, the row is reaped, and all begins anew."""

    def _answer_error(self, step: Step, hold: Hold, turn: int, error: Exception) -> Commit:
        if isinstance(error, UnstorableValue):
            raise asyncio.CancelledError
        return super()._answer_error(step, hold, turn, error)


SCHEDULERS: dict[ProtocolStep, type[Scheduler]] = {
    "serialise-outside-guard": CrashesOnUnstorable,
    "inline-onto-any-key": InlineOntoAnyKey,
    "admits-before-it-continues": AdmitsBeforeItContinues,
    "sleep-until-poked": SleepsUntilPoked,
}


@contextmanager
def nodes_of(mutant: Mutant | None) -> Iterator[None]:
    """While the block runs, nodes of this process take the mutant's steps."""
    steps: frozenset[ProtocolStep] = frozenset() if mutant is None else mutant.protocol
    scheduler, threshold = vars(engine.node)["Scheduler"], QueuePolicy.demand_threshold
    for step in steps & SCHEDULERS.keys():
        setattr(engine.node, "Scheduler", SCHEDULERS[step])  # noqa: B010  # a constant to the type checker
    if "min-demand-unclamped" in steps:
        setattr(QueuePolicy, "demand_threshold", property(lambda queue: queue.min_demand))  # noqa: B010
    try:
        yield
    finally:
        setattr(engine.node, "Scheduler", scheduler)  # noqa: B010
        setattr(QueuePolicy, "demand_threshold", threshold)  # noqa: B010
