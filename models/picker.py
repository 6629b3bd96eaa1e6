"""The pure model of the picker's first slice: what each operation returns, and what the table holds afterwards.

Theory of operation:

1. A `Table` is frozen. Every operation takes one, and the server's time, and returns the next one with its answer.
   Nothing here knows a clock, a connection or chance.
2. The model holds the rules of picker.md §1, §3 and §4 as they are told there, not as the SQL writes them. An identity
   is one example: here a row that leaves its scope loses its scope; the engine narrows it where the row could return.
3. The model predicts exactly while one operation runs at a time. Others may hold row locks meanwhile: `locked` names
   those rows. What would wait for such a lock (flush, release) must not be asked.
4. One thing the pick order leaves open: which of several rows equal in (priority, eligible_at) comes into the window
   when not all of them fit. `preferred` tells what the engine did; the model follows where that is allowed, and only
   there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache

from engine.limits import PROVISIONAL_SHARD
from engine.picker import Commit, Hold, Job, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One instance (picker.md §1). `state` and `result` are canonical JSON (see `canonical_json`)."""

    id: int
    fsm: str
    fsm_version: int
    step: str
    state: str
    attempt: int = 0
    result: str | None = None
    last_error: str | None = None
    status: Status = "runnable"
    queue: str
    priority: int
    eligible_at: datetime
    locked_by: str | None = None
    lease_expires_at: datetime | None = None
    concurrency_key: str | None
    concurrency_shard: int | None = None
    rate_limit: str | None
    weight: float
    correlation_key: str | None
    correlation_scope: frozenset[Status] = field(compare=False)
    inserted_at: datetime
    updated_at: datetime

    @property
    def concurrency_name(self) -> str | None:
        """The part of the key before the first colon: what a gate is configured by."""
        return None if self.concurrency_key is None else self.concurrency_key.partition(":")[0]

    @property
    def correlation_guard(self) -> str | None:
        """The identity while it is occupied."""
        return self.correlation_key if self.status in self.correlation_scope else None

    @property
    def urgency(self) -> tuple[int, datetime]:
        """The pick order within a queue; smaller comes first."""
        return self.priority, self.eligible_at


@dataclass(frozen=True, slots=True)
class Table:
    """All rows by id, and the id that the next insert draws."""

    rows: Mapping[int, Row] = field(default_factory=dict)
    next_id: int = 1

    def changed(self, rows: Iterable[Row]) -> Table:
        """The table with these rows in the place of those with their ids."""
        return Table({**self.rows, **{row.id: row for row in rows}}, self.next_id)

    def owned(self, hold: Hold) -> Row | None:
        """The row that this claim holds at this moment; a claim's name is the fence, not the worker behind it."""
        row = self.rows.get(hold.id)
        return row if row is not None and row.status == "executing" and row.locked_by == hold.claim else None


def insert(table: Table, now: datetime, job: Job) -> tuple[Table, int | None]:
    """One job. Its id, or None where its identity is occupied; the id is drawn, and lost, all the same."""
    row = _new_row(table.next_id, now, job)
    drawn = Table(table.rows, table.next_id + 1)
    if row.correlation_guard is not None and row.correlation_guard in _occupied(table):
        return drawn, None
    return drawn.changed([row]), row.id


def insert_many(table: Table, now: datetime, jobs: Sequence[Job]) -> tuple[Table, list[int | None]]:
    """A batch. Of several jobs with one new identity the first wins."""
    answers: list[int | None] = []
    for job in jobs:
        table, answer = insert(table, now, job)
        answers.append(answer)
    return table, answers


def claim(
    table: Table,
    now: datetime,
    *,
    queue: str,
    batch: int,
    claim: str,
    lease_ms: float,
    gates: Collection[str] = (),
    locked: Collection[int] = (),
    preferred: Collection[int] = (),
) -> tuple[Table, tuple[Row, ...]]:
    """Up to `batch` rows, most urgent first, as they are after the claim (picker.md §3, "claim").

    The window of `batch` candidates is cut first; then, of several rows of one key in it, only the most urgent stays.
    So a claim may bring less than `batch` while more could run. A gate's rows all stay, with shard 0.
    """

    def gated(row: Row) -> bool:
        return row.concurrency_name is not None and row.concurrency_name in gates

    executing_keys = {
        row.concurrency_key
        for row in table.rows.values()
        if row.status == "executing" and row.concurrency_key is not None and row.concurrency_shard is None
    }
    candidates = [
        row
        for row in table.rows.values()
        if row.status == "runnable"
        and row.queue == queue
        and row.eligible_at <= now
        and row.id not in locked
        and (gated(row) or row.concurrency_key not in executing_keys)
    ]
    keys: set[str] = set()
    winners = []
    for row in sorted(_window(candidates, batch, gated, preferred), key=lambda row: (row.urgency, row.id)):
        if row.concurrency_key is not None and not gated(row):
            if row.concurrency_key in keys:
                continue
            keys.add(row.concurrency_key)
        winners.append(
            replace(
                _moved(row, now, "executing"),
                locked_by=claim,
                lease_expires_at=now + _milliseconds(lease_ms),
                concurrency_shard=PROVISIONAL_SHARD if gated(row) else None,
            )
        )
    return table.changed(winners), tuple(winners)


def flush(table: Table, now: datetime, commits: Sequence[Commit]) -> tuple[Table, tuple[Hold, ...]]:
    """Commit outcomes (picker.md §4). The claims so ended, by id; the others were stale and changed nothing.

    No two commits may carry the same row and claim.
    """
    committed = {
        hold: _committed(row, now, commit)
        for commit in commits
        if (row := table.owned(hold := Hold(commit.id, commit.claim))) is not None
    }
    return table.changed(committed.values()), _by_id(committed)


def heartbeat(
    table: Table, now: datetime, holds: Sequence[Hold], lease_ms: float, locked: Collection[int] = ()
) -> tuple[Table, tuple[Hold, ...]]:
    """Extend the leases of claims still held, run out or not. Those extended, by id."""
    extended = {
        hold: replace(row, lease_expires_at=now + _milliseconds(lease_ms))
        for hold in holds
        if (row := table.owned(hold)) is not None and row.id not in locked
    }
    return table.changed(extended.values()), _by_id(extended)


def release(table: Table, now: datetime, holds: Sequence[Hold]) -> tuple[Table, tuple[Hold, ...]]:
    """Give claims back: runnable, attempt and eligible_at kept. Those given back, by id."""
    released = {
        hold: _moved(row, now, "runnable") for hold in holds if (row := table.owned(hold)) is not None
    }
    return table.changed(released.values()), _by_id(released)


def reap(
    table: Table, now: datetime, limit: int, locked: Collection[int] = ()
) -> tuple[Table, tuple[Hold, ...]]:
    """Take back up to `limit` claims, longest expired first. Those taken back, by id."""
    expired = [
        (row.lease_expires_at, row.id)
        for row in table.rows.values()
        if row.lease_expires_at is not None and row.lease_expires_at < now and row.id not in locked
    ]
    taken = [table.rows[row_id] for _, row_id in sorted(expired)[:limit]]
    holds = [Hold(row.id, row.locked_by) for row in taken if row.locked_by is not None]
    freed = [replace(_moved(row, now, "runnable"), attempt=row.attempt + 1) for row in taken]
    return table.changed(freed), _by_id(holds)


def canonical_json(value: object) -> str:
    """One text for all JSON values that are equal as JSON: keys sorted, numbers by value, true apart from 1.

    Takes what `json.loads` gives, with floats as float or Decimal. A float counts as the shortest decimal that names
    it, which is what is written into JSON: jsonb keeps decimals, and has no negative zero.
    """
    match value:
        case None | bool() | str():
            return repr(value)
        case int() | float() | Decimal():
            return _canonical_number(value)
        case dict():
            return "{" + ",".join(f"{key!r}:{canonical_json(value[key])}" for key in sorted(value)) + "}"
        case list() | tuple():
            return "[" + ",".join(map(canonical_json, value)) + "]"
        case _:
            raise TypeError(f"{type(value).__name__} is not a JSON value")


@lru_cache(maxsize=4096)
def canonical_text(text: str) -> str:
    """`canonical_json` of the value that a JSON text tells, numbers taken digit by digit."""
    return canonical_json(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def _canonical_number(value: int | float | Decimal) -> str:
    sign, digits, exponent = (
        value
        if isinstance(value, Decimal)
        else Decimal(repr(float(value)) if isinstance(value, float) else value)
    ).as_tuple()
    assert isinstance(exponent, int), "JSON has no infinite numbers"
    mantissa = "".join(map(str, digits)).lstrip("0")
    stripped = mantissa.rstrip("0")
    exponent += len(mantissa) - len(stripped)
    return f"{'-' if sign else ''}{stripped}e{exponent}" if stripped else "0"


def _window(
    candidates: Sequence[Row], batch: int, gated: Callable[[Row], bool], preferred: Collection[int]
) -> list[Row]:
    """The first `batch` candidates in pick order, equals at its edge in an order that `preferred` agrees with."""
    ordered = sorted(candidates, key=lambda row: (row.urgency, row.id))
    if len(ordered) <= batch:
        return ordered
    if batch == 0:
        return []
    edge = ordered[batch - 1].urgency
    inside = [row for row in ordered if row.urgency < edge]
    tied = [row for row in ordered if row.urgency == edge]
    inside_keys = {row.concurrency_key for row in inside if not gated(row)}
    preferred_keys = {
        row.concurrency_key: row.id for row in reversed(tied) if row.id in preferred and not gated(row)
    }

    def would_be_dropped(row: Row) -> bool:
        # Such a row may have taken a place in the window without being seen in the answer.
        if row.concurrency_key is None or gated(row):
            return False
        return row.concurrency_key in inside_keys or row.id > preferred_keys.get(row.concurrency_key, row.id)

    def order(row: Row) -> tuple[int, int]:
        return (0 if row.id in preferred else 1 if would_be_dropped(row) else 2), row.id

    return inside + sorted(tied, key=order)[: batch - len(inside)]


def _by_id(holds: Iterable[Hold]) -> tuple[Hold, ...]:
    return tuple(sorted(holds, key=lambda hold: hold.id))


def _new_row(row_id: int, now: datetime, job: Job) -> Row:
    return Row(
        id=row_id,
        fsm=job.fsm,
        fsm_version=job.fsm_version,
        step=job.step,
        state=canonical_json(dict(job.state)),
        queue=job.queue,
        priority=job.priority,
        eligible_at=now if job.eligible_at is None else job.eligible_at.astimezone(UTC),
        concurrency_key=job.concurrency_key,
        rate_limit=job.rate_limit,
        weight=job.weight,
        correlation_key=job.correlation_key,
        correlation_scope=frozenset(job.correlation_scope),
        inserted_at=now,
        updated_at=now,
    )


def _occupied(table: Table) -> set[str | None]:
    return {row.correlation_guard for row in table.rows.values()}


def _moved(row: Row, now: datetime, status: Status) -> Row:
    """The row in another status, free of any claim. An identity whose scope it leaves is given up for good."""
    return replace(
        row,
        status=status,
        correlation_scope=row.correlation_scope if status in row.correlation_scope else frozenset(),
        locked_by=None,
        lease_expires_at=None,
        concurrency_shard=None,
        updated_at=now,
    )


def _committed(row: Row, now: datetime, commit: Commit) -> Row:
    status: Status
    attempt, eligible_at = row.attempt, row.eligible_at
    match commit.kind:
        case "next":
            status, attempt = "runnable", 0
        case "retry":
            status, attempt, eligible_at = "runnable", row.attempt + 1, now + _milliseconds(commit.delay_ms)
        case "done":
            status = "done"
        case "stop":
            status = "failed"
    return replace(
        _moved(row, now, status),
        attempt=attempt,
        eligible_at=eligible_at,
        step=row.step if commit.step is None else commit.step,
        state=row.state if commit.state is None else canonical_text(commit.state),
        result=row.result if commit.result is None else canonical_text(commit.result),
        last_error=row.last_error if commit.error is None else commit.error,
    )


def _milliseconds(amount: float) -> timedelta:
    # Postgres rounds to whole microseconds, half to even; so does round().
    return timedelta(microseconds=round(amount * 1000))
