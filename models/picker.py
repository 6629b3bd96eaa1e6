"""The pure model of the picker: what each operation returns, and what the tables hold afterwards.

Rows, claims and leases are here; what an outcome does is in `models.outcomes`, signals are in `models.inbox`, reclaim
and garbage collection in `models.maintenance`. All of them change one `Table`.

Theory of operation:

1. A `Table` is frozen. Every operation takes one, and the server's time, and returns the next one with its answer.
   Nothing here knows a clock, a connection or chance.
2. The model holds the rules of picker.md §1, §3 and §4 as they are told there, not as the SQL writes them. An identity
   is one example: here a row that leaves its scope loses its scope; the engine narrows it where the row could return.
3. The model predicts exactly while one operation takes effect at a time. Others may hold row locks meanwhile: `locked`
   names those rows, and what skips locked rows passes over them. What would wait for such a lock (flush, release, a
   delivery) either must not be asked, or stands in a queue at the lock and takes effect in the order of that queue:
   `…_locks` say what an operation waits for.
4. One thing the orders leave open: which of several rows that are equal in one comes first when not all of them fit.
   `preferred` tells what a claim of the engine did; the model follows where that is allowed, and only there. The sweeps
   must not be asked then.
5. What a row is owned by is `locked_by` and `turn` while it executes, and nothing else (`single-owner`). A claim that
   lost its row may come back with whatever it likes: no operation here finds a row for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from engine.limits import PROVISIONAL_SHARD, Slot
from engine.picker import TERMINAL, Hold, Job, Status
from models.canonical import canonical_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One instance (picker.md §1). `state` and `result` are canonical JSON (see `models.canonical`)."""

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
    turn: int = 0
    awaits: tuple[str, ...] | None = None
    await_deadline: datetime | None = None
    parent_id: int | None = None
    children_pending: int = 0
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

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status not in TERMINAL

    @property
    def slot(self) -> Slot | None:
        """The place in a gate that the row was admitted to; a provisional shard is none."""
        if self.concurrency_key is None or self.concurrency_shard is None:
            return None
        return None if self.concurrency_shard < 0 else Slot(self.concurrency_key, self.concurrency_shard)


@dataclass(frozen=True, slots=True)
class PendingSignal:
    """A pending signal of one target. `payload` is canonical JSON."""

    id: int
    target_id: int
    name: str
    payload: str
    dedup_key: str | None
    inserted_at: datetime


@dataclass(frozen=True, slots=True)
class Table:
    """All rows and all pending signals by id, the receipts of deliveries, and the ids that come next."""

    rows: Mapping[int, Row] = field(default_factory=dict)
    next_id: int = 1
    signals: Mapping[int, PendingSignal] = field(default_factory=dict)
    next_signal_id: int = 1
    # (target, dedup key) of each delivery that had one, consumed or not.
    receipts: frozenset[tuple[int, str]] = frozenset()

    def changed(self, rows: Iterable[Row]) -> Table:
        """The table with these rows in the place of those with their ids."""
        return replace(self, rows={**self.rows, **{row.id: row for row in rows}})

    def inbox(self, row_id: int) -> list[PendingSignal]:
        """The pending signals of a row, oldest first."""
        return [signal for _, signal in sorted(self.signals.items()) if signal.target_id == row_id]

    def children(self, row_id: int) -> list[Row]:
        """The children of a row, of any round, oldest first."""
        return [row for _, row in sorted(self.rows.items()) if row.parent_id == row_id]

    def owned(self, hold: Hold) -> Row | None:
        """The row that this claim holds at this moment; a claim's name is the fence, not the worker behind it."""
        row = self.rows.get(hold.id)
        return row if row is not None and row.status == "executing" and row.locked_by == hold.claim else None


@dataclass(frozen=True, slots=True)
class Ended:
    """What a transaction that ends claims answers: the claims by id, the gate slots that came free, and the queues that
    have work because of it other than that of its own rows."""

    holds: tuple[Hold, ...] = ()
    freed: tuple[Slot, ...] = ()
    woken: frozenset[str] = frozenset()


def insert(table: Table, now: datetime, job: Job, parent_id: int | None = None) -> tuple[Table, int | None]:
    """One job. Its id, or None where its identity is occupied; the id is drawn, and lost, all the same."""
    row = replace(_new_row(table.next_id, now, job), parent_id=parent_id)
    drawn = replace(table, next_id=table.next_id + 1)
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
                moved(row, now, "executing"),
                turn=0,
                locked_by=claim,
                lease_expires_at=now + milliseconds(lease_ms),
                concurrency_shard=PROVISIONAL_SHARD if gated(row) else None,
            )
        )
    return table.changed(winners), tuple(winners)


def heartbeat(
    table: Table, now: datetime, holds: Sequence[Hold], lease_ms: float, locked: Collection[int] = ()
) -> tuple[Table, tuple[Hold, ...]]:
    """Extend the leases of claims still held, run out or not. Those extended, by id."""
    extended = {
        hold: replace(row, lease_expires_at=now + milliseconds(lease_ms))
        for hold in holds
        if (row := table.owned(hold)) is not None and row.id not in locked
    }
    return table.changed(extended.values()), by_id(extended)


def release(table: Table, now: datetime, holds: Sequence[Hold]) -> tuple[Table, Ended]:
    """Give claims back: runnable, attempt and eligible_at kept."""
    held = {hold: row for hold in holds if (row := table.owned(hold)) is not None}
    freed = by_key(row.slot for row in held.values())
    return table.changed(moved(row, now, "runnable") for row in held.values()), Ended(by_id(held), freed)


def release_locks(table: Table, holds: Sequence[Hold]) -> frozenset[int]:
    """The rows whose locks a release waits for."""
    return frozenset(hold.id for hold in holds if table.owned(hold) is not None)


def reap(table: Table, now: datetime, limit: int, locked: Collection[int] = ()) -> tuple[Table, Ended]:
    """Take back up to `limit` claims, longest expired first.

    A lease that was renewed in time has not run out (`lease-respect`).
    """
    expired = [
        (row.lease_expires_at, row.id)
        for row in table.rows.values()
        if row.lease_expires_at is not None and row.lease_expires_at < now and row.id not in locked
    ]
    return taken_back(table, now, [table.rows[row_id] for _, row_id in sorted(expired)[:limit]])


def taken_back(table: Table, now: datetime, rows: Sequence[Row]) -> tuple[Table, Ended]:
    """The table without the claims on these rows: what they ran may have run, so it counts as an attempt."""
    holds = [Hold(row.id, row.locked_by) for row in rows if row.locked_by is not None]
    freed = [replace(moved(row, now, "runnable"), attempt=row.attempt + 1) for row in rows]
    return table.changed(freed), Ended(by_id(holds))


def moved(row: Row, now: datetime, status: Status) -> Row:
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


def by_id(holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Claims in the order of their rows."""
    return tuple(sorted(holds, key=lambda hold: hold.id))


def by_key(slots: Iterable[Slot | None]) -> tuple[Slot, ...]:
    """Those that are slots, in the order of key and shard."""
    return tuple(sorted((slot for slot in slots if slot is not None), key=lambda s: (s.key, s.shard)))


def milliseconds(amount: float) -> timedelta:
    """That long, to the microsecond that Postgres makes of it: half to even, as round() does."""
    return timedelta(microseconds=round(amount * 1000))


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
